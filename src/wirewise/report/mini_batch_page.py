"""One HTML file about mini-batch training over partitioned features: what binds each mode, and what was sent."""

from __future__ import annotations

from wirewise.report import shell
from wirewise.report.figures import factor, seconds, size
from wirewise.report.mini_batch_bars import stages_chart, stages_legend
from wirewise.report.replay_bars import Bar, bars_chart
from wirewise.report.replay_rows import signed
from wirewise.results import MiniBatchRecord, MiniBatchRun

__all__ = ["mini_batch_html"]


_EMULATED = "training is emulated: its steps were timed while no other machine computed, and are slept."


def mini_batch_html(run: MiniBatchRun) -> str:
    """The page as text."""
    kind = f"wirewise run salientpp \N{MIDDLE DOT} {run.dataset}, {run.workers} machines at {run.link}"
    sections = [
        shell.head(kind, _sentence(run)),
        _cards(run),
        _epochs(run),
        _stages(run),
        _binding(run),
        _bytes(run),
        _policies(run),
        _notes(run),
    ]
    return shell.page(f"{run.dataset}: mini-batches", sections)


def _fastest(run: MiniBatchRun) -> str:
    return min(run.modes, key=lambda name: run.modes[name].epoch_s)


def _first(run: MiniBatchRun) -> str:
    return next(iter(run.modes))


def _allowed(run: MiniBatchRun, one: MiniBatchRecord) -> float | None:
    """Speed over the first mode by the model."""
    return run.modes[_first(run)].predicted_s / one.predicted_s if one.predicted_s > 0 else None


def _sentence(run: MiniBatchRun) -> str:
    best, first = _fastest(run), _first(run)
    took = seconds(run.modes[best].epoch_s)
    how = ", with computing emulated" if run.processors == "own" else ""
    if best == first:
        return f"{best} is the fastest of {len(run.modes)} modes: {took} an epoch{how}."
    return f"An epoch takes {took} with {best}, {factor(run.modes[best].speedup)} as fast as {first}{how}."


def _cards(run: MiniBatchRun) -> str:
    name = _fastest(run)
    best, first = run.modes[name], run.modes[_first(run)]
    less = first.bytes_sent / best.bytes_sent if best.bytes_sent else None
    return shell.cards(
        [
            ("Fastest epoch", seconds(best.epoch_s), f"{name}, {run.batches} batches on each machine"),
            (f"Faster than {_first(run)}", factor(best.speedup), f"the model allows {factor(_allowed(run, best))}"),
            ("Rows from the cache", f"{100 * best.hit_rate:.0f} %", f"of other machines' rows, alpha {run.alpha:g}"),
            ("Fewer bytes of rows", factor(less), f"{size(best.bytes_sent)} an epoch, all machines"),
            *_trained(best, _first(run), first),
        ]
    )  # fmt: skip


def _trained(best: MiniBatchRecord, name: str, first: MiniBatchRecord) -> list[tuple[str, str, str]]:
    if best.accuracy is None:
        return []
    return [("Test accuracy", _accuracy(best), f"{name}: {_accuracy(first)}")]


def _accuracy(one: MiniBatchRecord) -> str:
    return "not trained" if one.accuracy is None else f"{100 * one.accuracy:.1f} %"


def _epochs(run: MiniBatchRun) -> str:
    name = _fastest(run)
    bars = [
        Bar(mode, one.epoch_s, f"{factor(one.speedup)}, model {seconds(one.predicted_s)}", colour)
        for mode, one in run.modes.items()
        for colour in ["c2" if mode == name else "c1"]
    ]
    chart = bars_chart(bars, "Epoch of each mode", run.modes[name].predicted_s)
    lead = f"Medians; the dashed line is what the model says of {name}."
    return shell.section("Epochs", lead, f"<figure>{chart}</figure>" if chart else "")


def _stages(run: MiniBatchRun) -> str:
    chart = stages_chart(run.modes, run.batches)
    lead = (
        "Medians of a batch on machine 0. In a pipeline stages of different batches go on at the same time: the mark "
        "says after what time the next batch came. "
    ) + (
        f"Here {_EMULATED}" if run.processors == "own" else "Machines share the processors of this computer."
    )
    return shell.section(
        "Stages of a batch", lead, f"{stages_legend()}<figure>{chart}</figure>" if chart else ""
    )


def _binding(run: MiniBatchRun) -> str:
    rows = [
        [
            name,
            one.binding,
            max(one.stage_s, key=lambda stage: one.stage_s[stage]),
            seconds(one.epoch_s),
            seconds(one.link_s),
            seconds(one.cpu_s),
            seconds(one.predicted_s),
            signed(one.epoch_s / one.predicted_s - 1) if one.predicted_s > 0 else "",
        ]
        for name, one in run.modes.items()
    ]
    titles = ["mode", "binds", "longest stage", "epoch", "link", "processors", "model", "over the model"]
    lead = (
        "Link: what the busiest machine's ids, rows and gradients take at the link's rate, with headers. Processors: "
        "computing of all machines over the processors that they share here. Model: the longer of both in a pipeline, "
        "otherwise their sum."
    )
    return shell.section("What binds an epoch", lead, shell.table(titles, rows))


def _bytes(run: MiniBatchRun) -> str:
    rows = [
        [
            name,
            f"{one.remote_rows:,}",
            f"{100 * one.hit_rate:.1f} %",
            size(one.bytes_predicted),
            size(one.bytes_sent),
            signed(one.bytes_sent / one.bytes_predicted - 1) if one.bytes_predicted else "",
            size(one.sampling_bytes),
            size(one.gradient_bytes),
            _accuracy(one),
        ]
        for name, one in run.modes.items()
    ]
    titles = [
        "mode", "rows fetched", "cache hits", "predicted", "sent", "over prediction", "neighbours", "gradients",
        "test accuracy",
    ]  # fmt: skip
    lead = (
        "Of all machines in an epoch. Predicted: ids and rows that the cache plan expects, before training. "
        "Neighbours: what machines tell each other to sample, where each has the edges of its own nodes only."
    )
    return shell.section("Bytes", lead, shell.table(titles, rows))


def _policies(run: MiniBatchRun) -> str:
    alphas = list(dict.fromkeys(alpha for left in run.policies.values() for alpha in left))
    rows = [
        [name, *(f"{100 * left[alpha]:.1f} %" if alpha in left else "" for alpha in alphas)]
        for name, left in run.policies.items()
    ]
    lead = "Share of the remote rows that each policy leaves to fetch, by alpha: what share of all nodes caches hold."
    return shell.section(
        "Cache policies", lead, shell.table(["policy", *(f"alpha {a}" for a in alphas)], rows)
    )


def _notes(run: MiniBatchRun) -> str:
    where = "on every machine" if run.topology == "replicated" else "partitioned"
    hosts = f"on {run.hosts or run.workers} hosts of a lab with links of {run.link}"
    if run.link == "loopback":
        hosts = "that talk over loopback, which no link shapes"
    told = [
        f"The graph is {where}, features are partitioned; all modes take the same batches.",
        f"Machines are processes {hosts}; "
        + (_EMULATED if run.processors == "own" else f"all compute on this computer ({run.device})."),
        "Machines divide the cached rows so that the busiest link carries the fewest."
        if run.share == "balanced"
        else "",
        f"The sampler draws {run.sampler_edges_per_s / 1e6:.1f} million edges a second on one thread.",
        f"Compressed gradients travel by {run.codec}." if run.codec else "",
    ]
    items = "".join(f"<li>{text}</li>" for text in told if text)
    return shell.section("Notes", "", f'<ul class="how">{items}</ul>')
