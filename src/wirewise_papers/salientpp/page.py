"""HTML page of mini-batch training over partitioned features: bottleneck of each mode, and bytes sent."""

from __future__ import annotations

from wirewise.report import shell
from wirewise.report.bars import Stack, stacks_chart
from wirewise.report.comparison_page import best_of, comparison_html, fastest
from wirewise.report.figures import count, factor, seconds, signed, size
from wirewise.results import Comparison, Variant
from wirewise_papers.salientpp.records import MiniBatchRecord, MiniBatchRun

__all__ = ["mini_batch_comparison", "mini_batch_html"]

_STAGES = {
    "sample": ("central", "draw the neighbourhood of the seeds"),
    "ids": ("reduce", "tell owners which rows are needed"),
    "slice": ("pack", "encode the rows that others asked for"),
    "rows": ("wire", "wait until the rows of all machines have travelled"),
    "assemble": ("unpack", "decode, and copy own and cached rows"),
    "train": ("dense", "forward, backward, gradients over all machines, optimizer"),
}
"""Colour and meaning of each stage, in the order of a batch."""
_EMULATED = "training is emulated: its steps were timed while no other machine computed, and are slept."


def mini_batch_html(run: MiniBatchRun) -> str:
    """Render the page."""
    sections = [_stages(run), _binding(run), _bytes(run), _policies(run)]
    return comparison_html(mini_batch_comparison(run), f"{run.dataset}: mini-batches", sections)


def mini_batch_comparison(run: MiniBatchRun) -> Comparison:
    """Comparison of modes, with rows and bytes of all machines in an epoch."""
    best = _fastest(run)
    return Comparison(
        kind=f"wirewise run salientpp \N{MIDDLE DOT} {run.dataset}, {run.workers} machines at {run.link}",
        sentence=_sentence(run),
        cards=_cards(run),
        title="Epochs",
        lead=f"Run: all epochs, and before them what the mode alone needs, its cache planned and filled (setup). "
        f"Epoch: median; the dashed line is what the model says of {best}. Model: the longer of link and processors in "
        "a pipeline, otherwise their sum; off: how much longer the epoch took. Sent: ids, rows and neighbours of all "
        "machines in an epoch.",
        goal=run.modes[best].predicted_s,
        what="mode",
        variants={name: _variant(name, one, best) for name, one in run.modes.items()},
        notes=_notes(run),
    )


def _fastest(run: MiniBatchRun) -> str:
    return min(run.modes, key=lambda name: run.modes[name].run_s)


def _sentence(run: MiniBatchRun) -> str:
    best, first = _fastest(run), next(iter(run.modes))
    one = run.modes[best]
    took, epochs = seconds(one.run_s), count(len(one.epochs_s), "epoch")
    how = ", with computing emulated" if run.processors == "own" else ""
    if best == first:
        return f"{fastest(best, len(run.modes), 'mode', f'{took} for {epochs}')}{how}."
    paid = f", {seconds(one.setup_s)} of it to plan and fill the cache" if one.setup_s else ""
    return (
        f"With {best} {epochs} took {took}{paid}: {factor(one.speedup_run)} as fast as {first}, and "
        f"{factor(one.speedup)} in an epoch alone (median){how}."
    )


def _cards(run: MiniBatchRun) -> tuple[tuple[str, str, str], ...]:
    name, reference = _fastest(run), next(iter(run.modes))
    best, first = run.modes[name], run.modes[reference]
    allowed = first.predicted_s / best.predicted_s if best.predicted_s > 0 else None
    less = first.bytes_sent / best.bytes_sent if best.bytes_sent else None
    cards = (
        ("Fastest run", seconds(best.run_s), f"{name}, {len(best.epochs_s)} x {run.batches} batches on each machine"),
        (
            f"Faster than {reference}",
            factor(best.speedup_run),
            f"{factor(best.speedup)} in an epoch alone; the model allows {factor(allowed)}",
        ),
        ("Rows from the cache", f"{100 * best.hit_rate:.0f} %", f"of other machines' rows, alpha {run.alpha:g}"),
        ("Fewer bytes of rows", factor(less), f"{size(best.bytes_sent)} an epoch, all machines"),
    )  # fmt: skip
    if best.accuracy is None:
        return cards
    return (*cards, ("Test accuracy", _accuracy(best), f"{reference}: {_accuracy(first)}"))


def _accuracy(one: MiniBatchRecord) -> str:
    return "not trained" if one.accuracy is None else f"{100 * one.accuracy:.1f} %"


def _variant(name: str, one: MiniBatchRecord, best: str) -> Variant:
    epoch, model, speed = seconds(one.epoch_s), seconds(one.predicted_s), factor(one.speedup)
    off = signed(one.epoch_s / one.predicted_s - 1) if one.predicted_s > 0 else ""
    return Variant(
        length=one.epoch_s,
        words=f"{epoch} ({speed}, model {model})",
        colour=best_of(name, best),
        cells={
            "run": seconds(one.run_s),
            "setup": seconds(one.setup_s) if one.setup_s else "",
            "epoch": epoch,
            "speed": speed,
            "model, off": f"{model}, {off}" if off else model,
            "binds": one.binding,
            "rows fetched": f"{one.remote_rows:,}",
            "cache hits": f"{100 * one.hit_rate:.1f} %",
            "sent": size(one.bytes_sent + one.sampling_bytes),
            "accuracy": _accuracy(one),
        },
    )


def _stages(run: MiniBatchRun) -> str:
    each = {name: one.epoch_s / max(run.batches, 1) for name, one in run.modes.items()}
    rows = [
        Stack(name, one.stage_s, f"{seconds(each[name])} a batch", each[name])
        for name, one in run.modes.items()
    ]
    colours = {stage: colour for stage, (colour, _) in _STAGES.items()}
    chart = stacks_chart(rows, colours, "Time of each stage of a batch by mode")
    lead = (
        "Medians of a batch on machine 0. In a pipeline stages of different batches go on at the same time: the mark "
        "says after what time the next batch came. "
    ) + (
        f"Here {_EMULATED}" if run.processors == "own" else "Machines share the processors of this computer."
    )
    legend = shell.legend({f"{stage}: {what}": f"p-{colour}" for stage, (colour, what) in _STAGES.items()})
    return shell.section("Stages of a batch", lead, shell.figure(chart, legend))


def _binding(run: MiniBatchRun) -> str:
    rows = [
        (
            name,
            max(one.stage_s, key=lambda stage: one.stage_s[stage]),
            seconds(one.link_s),
            seconds(one.cpu_s),
            seconds(one.slept_s),
        )
        for name, one in run.modes.items()
    ]
    lead = (
        "Link: what the busiest machine's ids, rows and gradients take at the link's rate, with headers. Processors: "
        "computing of all machines over the processors that they share here. Accelerator: what is slept in its place."
    )
    titles = ("mode", "longest stage", "link", "processors", "accelerator")
    return shell.section("What binds an epoch", lead, shell.table(titles, rows))


def _bytes(run: MiniBatchRun) -> str:
    rows = [
        (
            name,
            one.row_format,
            f"{one.row_bytes:,.1f}",
            size(one.bytes_predicted),
            size(one.bytes_sent),
            signed(one.bytes_sent / one.bytes_predicted - 1) if one.bytes_predicted else "",
            size(one.sampling_bytes),
            size(one.gradient_bytes),
        )
        for name, one in run.modes.items()
    ]
    lead = (
        "All machines in an epoch. Rows travel with all values (dense), as bits, as columns of ones, as columns and "
        "values (sparse), or rounded (int8, bfloat16). Predicted: ids and rows that the cache plan expects, before "
        "training. Neighbours: what machines tell each other to sample, where each has the edges of its own nodes "
        "only. "
        f"The plan expects the cache to leave {100 * run.predicted_remaining:.1f} % of the remote rows."
    )
    titles = (
        "mode",
        "rows as",
        "bytes a row",
        "predicted",
        "ids and rows",
        "over prediction",
        "neighbours",
        "gradients",
    )
    return shell.section("Bytes", lead, shell.table(titles, rows))


def _policies(run: MiniBatchRun) -> str:
    alphas = list(dict.fromkeys(alpha for left in run.policies.values() for alpha in left))
    rows = [
        [name, *(f"{100 * left[alpha]:.1f} %" if alpha in left else "" for alpha in alphas)]
        for name, left in run.policies.items()
    ]
    lead = "Share of the remote rows that each policy leaves to fetch, by alpha: what share of all nodes caches hold."
    titles = ["policy", *(f"alpha {alpha}" for alpha in alphas)]
    return shell.section("Cache policies", lead, shell.table(titles, rows))


def _notes(run: MiniBatchRun) -> tuple[str, ...]:
    where = "on every machine" if run.topology == "replicated" else "partitioned"
    hosts = f"on {run.hosts or run.workers} hosts of a lab with links of {run.link}"
    if run.link == "slurm":
        hosts = f"on {run.hosts or run.workers} hosts of an allocation of Slurm"
    if run.link == "loopback":
        hosts = "that talk over loopback, which no link shapes"
    told = (
        f"The graph is {where}, features are partitioned; all modes take the same batches.",
        f"Machines are processes {hosts}; "
        + (_EMULATED if run.processors == "own" else f"all compute on this computer ({run.device})."),
        "Machines divide the cached rows so that the busiest link carries the fewest."
        if run.share == "balanced"
        else "",
        f"The sampler draws {run.sampler_edges_per_s / 1e6:.1f} million edges a second on one thread.",
        f"Compressed gradients travel by {run.codec}." if run.codec else "",
    )
    return tuple(text for text in told if text)
