"""HTML page of training under failures: timeline of each recovery, and baselines."""

from __future__ import annotations

import statistics

from wirewise.report import shell
from wirewise.report.bars import Stack, stacks_chart
from wirewise.report.comparison_page import best_of, comparison_html
from wirewise.report.figures import count, percent, seconds, signed, size
from wirewise.results import Comparison, RecoveryRecord, Variant
from wirewise_papers.swift.records import RecoveryRun, SurvivalRecord

__all__ = ["recovery_comparison", "recovery_html", "recovery_timeline"]

_PHASES = {
    "detect": ("p-reduce", "from the signal until the agent on the host knows that the rank is gone"),
    "fence": (
        "p-other",
        "until no process of the old process group can act: blocked collectives are interrupted",
    ),
    "regroup": ("p-wire", "until the new process group stands, a spare in the place of the dead rank"),
    "restore": ("p-central", "until every rank has the state of the step that all agreed on"),
    "recompute": (
        "p-pack",
        "until a new process has computed the steps since its checkpoint again, from logs",
    ),
    "resume": ("p-dense", "until the first step is committed that had not been before"),
}
"""Colour and meaning of each phase of a recovery."""


def recovery_html(run: RecoveryRun) -> str:
    """Render the page."""
    return comparison_html(
        recovery_comparison(run), f"{count(run.kills, 'kill')} survived", [recovery_timeline(run.recoveries)]
    )


def recovery_timeline(recoveries: tuple[RecoveryRecord, ...]) -> str:
    """Section with a bar of phases for each recovery, and the predicted one; empty without recoveries."""
    rows = []
    for number, one in enumerate(recoveries, start=1):
        told = f"{seconds(one.recovered_s)}, {one.strategy}"
        rows.append(Stack(f"{number}: rank {one.rank} at {seconds(one.at_s)}", one.phases_s, told))
        if one.predicted_s:
            rows.append(
                Stack("predicted", one.predicted_s, seconds(sum(one.predicted_s.values())), colour="c0")
            )
    colours = {name: colour.removeprefix("p-") for name, (colour, _) in _PHASES.items()}
    chart = stacks_chart(rows, colours, "Phases of each recovery")
    legend = shell.legend({name: colour for name, (colour, _) in _PHASES.items()})
    lead = "Seconds from the signal to the first new step; the bar below, if there is one, is what was predicted."
    return shell.section(
        "Timeline of each recovery",
        lead if rows else "",
        shell.figure(chart, legend) + shell.terms({name: text for name, (_, text) in _PHASES.items()})
        if rows
        else "",
    )


_REDUCER = (
    "A step's overhead holds that of another reducer too: protected gradients go through wirewise's buckets, those of "
    "the script through DistributedDataParallel.",
)


def recovery_comparison(run: RecoveryRun) -> Comparison:
    """Comparison of recovery methods, with recovery time and goodput."""
    own = next(iter(run.ways.values()))
    median_s = statistics.median(own.recovered_s) if own.recovered_s else None
    sentence = f"No rank was killed; a protected step takes {signed(run.overhead)} of time."
    if median_s is not None:
        equal = "the final state is that of an undisturbed training, bit for bit"
        sentence = (
            f"{count(run.kills, 'kill')} survived, a new step {seconds(median_s)} after a kill (median); "
            f"{equal if run.bit_equal else 'THE FINAL STATE DIFFERS from that of an undisturbed training'}."
        )
    best = max(run.ways, key=lambda name: run.ways[name].goodput)
    return Comparison(
        kind=f"wirewise run swift \N{MIDDLE DOT} {run.job} on {run.hosts} hosts at {run.link}, {run.optimizer}",
        sentence=sentence,
        cards=(
            ("To a new step", seconds(median_s), "after a kill, median"),
            ("Goodput", percent(run.goodput), f"baseline {percent(run.baseline_goodput)}"),
            ("Overhead", signed(run.overhead), "of a step, without failures"),
            ("State of a rank", size(run.state_bytes), "parameters and optimizer"),
        ),
        title="Goodput under the same failures",
        lead="Time that an unprotected training without failures needs for the same steps, over the time that was "
        "taken. To a step: until the process in the place of the killed one takes any step; to a new step: until it "
        "takes one that had not been taken before. Medians over the kills.",
        what="way",
        variants={name: _variant(name, one, best) for name, one in run.ways.items()},
        notes=(
            *(f"{name}: {one.meaning}." for name, one in run.ways.items()),
            f"The checkpoints: {run.baseline}.",
            "Processes, links, kills (SIGKILL) and steps are real; all ranks share the processors of one machine.",
            *(_REDUCER if run.job == "ddp" else ()),
            "A kill that is due while its rank does not train strikes when it does, and the next ones come as much "
            "later: time between failures is time of training. Those after the end are left out.",
        ),
    )


def _variant(name: str, one: SurvivalRecord, best: str) -> Variant:
    def median(values: tuple[float, ...]) -> str:
        return seconds(statistics.median(values) if values else None)

    return Variant(
        length=one.goodput,
        words=f"{percent(one.goodput)} ({count(one.kills, 'kill')})",
        colour=best_of(name, best),
        cells={
            "goodput": percent(one.goodput),
            "kills": str(one.kills),
            "left out": str(one.spared),
            "to a step": median(one.resumed_s),
            "to a new step": median(one.recovered_s),
            "steps computed again": str(one.repeated),
            "a step": seconds(one.step_s),
            "bit-equal": {True: "yes", False: "NO", None: "-"}[one.bit_equal],
        },
    )
