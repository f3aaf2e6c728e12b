"""Page of a trace as one HTML file: bottleneck of the step, breakdown of its time, effect of changes."""

from __future__ import annotations

from wirewise.report import replay_rows, shell
from wirewise.report.bars import Bar, Stack, bars_chart, stacks_chart
from wirewise.report.comparison_page import best_of, comparison_html
from wirewise.report.figures import MISSING, percent, seconds, signed
from wirewise.report.replay_rows import BASELINES, TextTable
from wirewise.report.waterfall import shown_ranks, waterfall, waterfall_legend
from wirewise.results import Comparison, Variant
from wirewise.sim.analysis import TraceAnalysis
from wirewise.sim.breakdown import Breakdown
from wirewise.sim.diagnose import describe_change
from wirewise.trace.records import Trace

__all__ = ["replay_html"]

_PARTS = {
    "compute alone": "central",
    "communication beside compute": "marginal",
    "exposed communication": "wire",
    "waiting": "other",
}


def replay_html(trace: Trace, analysis: TraceAnalysis, section: str = "") -> str:
    """Render the page as HTML text.

    Args:
        trace: Trace on aligned clocks.
        analysis: Replay analysis of this trace.
        section: HTML placed first, such as the result of a plan.
    """
    report, ranks = analysis.report, shown_ranks(trace, analysis.diagnosis.straggler_rank)
    hosts = list(dict.fromkeys(rank.header.host for rank in trace.ranks))
    first = [
        section,
        _step(trace, analysis, ranks),
        _parts(analysis, ranks),
        _section(
            "Critical path",
            f"The ops that decide when step {analysis.step} ends, longest first.",
            replay_rows.critical_rows(report),
        ),
    ]
    sections = [
        _section(
            "What faster links would give",
            f"Seconds of step {analysis.step}, by simulating it again.",
            replay_rows.link_rows(analysis, hosts),
        ),
        _section(
            "What faster ops would give",
            f"The longest compute ops on the critical path of step {analysis.step}.",
            replay_rows.op_rows(analysis),
        ),
        _errors(analysis),
        _section("Steps", "", replay_rows.step_rows(report)),
        _section("Ranks", "", replay_rows.rank_rows(trace, analysis)),
    ]
    return comparison_html(
        _comparison(trace, analysis), f"Trace of {trace.world_size} ranks", sections, first=first
    )


def _section(title: str, lead: str, rows: TextTable) -> str:
    return shell.section(title, lead, shell.table(*rows))


def _comparison(trace: Trace, analysis: TraceAnalysis) -> Comparison:
    """The step as it is next to the step with each change."""
    base = analysis.report.predicted_step_s
    titles, rows = replay_rows.what_if_rows(analysis)
    unchanged = dict(zip(titles[1:], ("", seconds(base), "", ""), strict=True))
    variants = {"as it is": Variant(length=base, words=seconds(base), colour="c0", cells=unchanged)}
    for row, (name, *cells) in zip(analysis.what_ifs, rows, strict=True):
        after = None if row.prediction is None else row.prediction.predicted_step_s
        told = f"{seconds(after)} ({signed(after / base - 1)})" if after is not None else ""
        colour = best_of(row.change, analysis.diagnosis.best_change or "")
        figures = dict(zip(titles[1:], cells, strict=True))
        variants[name] = Variant(length=after, words=told, colour=colour, cells=figures)
    hosts = {rank.header.host for rank in trace.ranks}
    alone = "All ranks are on one host: its transfers cross no link, so changes of links were not tried."
    return Comparison(
        kind=f"wirewise trace \N{MIDDLE DOT} {trace.world_size} ranks, {analysis.report.steps} steps",
        sentence=analysis.diagnosis.sentence,
        cards=_cards(analysis),
        title="What changes would give",
        lead="Every change alone, simulated; the dashed line is the step as it is. Try others: wirewise sim --what-if.",
        what=titles[0],
        variants=variants,
        goal=base,
        notes=(
            "Measured: the steps, the ops and the waterfall. Everything else on this page is simulated, with links "
            "and interference fitted from the trace itself.",
            *([alone] if len(hosts) == 1 and trace.world_size > 1 else []),
            *trace.notes,
        ),
        facts=next((rank.header.environment for rank in trace.ranks if rank.header.environment), {}),
    )


def _cards(analysis: TraceAnalysis) -> tuple[tuple[str, str, str], ...]:
    report, found = analysis.report, analysis.diagnosis
    low, high = report.error_ci95
    exposed = report.breakdown.exposed_communication_s
    return (
        ("Step, measured", seconds(report.measured_step_s), f"mean of {report.steps} steps and all ranks"),
        (
            "Replay error",
            signed(report.error),
            f"95 % interval {signed(low)} to {signed(high)}, {seconds(report.predicted_step_s)} replayed",
        ),
        (
            "Exposed communication",
            percent(exposed / report.predicted_step_s),
            f"{seconds(exposed)} of a step that no compute hides",
        ),
        (
            "Best change tried",
            signed(-found.gain_s / report.predicted_step_s) if found.best_change else MISSING,
            describe_change(found.best_change) if found.best_change else "none gives 1 %",
        ),
        (
            "Straggler",
            MISSING if found.straggler_rank is None else f"rank {found.straggler_rank}",
            "no rank computes much longer than the others"
            if found.straggler_rank is None
            else f"{seconds(analysis.compute_s[found.straggler_rank])} of compute a step",
        ),
    )


def _step(trace: Trace, analysis: TraceAnalysis, ranks: list[int]) -> str:
    chart = waterfall(trace, analysis.step, analysis.critical, ranks)
    left = trace.world_size - len(ranks)
    lead = (
        f"Step {analysis.step}, whose time is nearest to the median, as it was recorded. Each rank has three "
        "lanes: compute, communication, and waiting for communication or data. A communication is drawn from "
        f"when the last rank had come and its turn was there.{f' {left} ranks are not shown.' if left else ''}"
    )
    return shell.section("One step", lead, shell.figure(chart, waterfall_legend(trace, analysis.step)))


def _parts(analysis: TraceAnalysis, ranks: list[int]) -> str:
    rows = []
    for rank in ranks:
        parts = dict(zip(_PARTS, _seconds(analysis.ranks[rank]), strict=True))
        rows.append(Stack(f"rank {rank}", parts, seconds(sum(parts.values()))))
    chart = stacks_chart(rows, _PARTS, "Where the step of each rank goes", block=len(rows))
    lead = f"Step {analysis.step} of each rank, replayed. Exposed: a transfer runs and the rank does nothing else."
    mean = shell.table(*replay_rows.breakdown_rows(analysis.report.breakdown))
    legend = shell.legend({part: f"p-{colour}" for part, colour in _PARTS.items()})
    body = f"{shell.figure(chart, legend)}<h3>All steps</h3>{mean}" if chart else ""
    return shell.section("Exposed and overlapped communication", lead, body)


def _seconds(found: Breakdown) -> tuple[float, ...]:
    both = found.overlapped_communication_s
    return max(found.compute_s - both, 0.0), both, found.exposed_communication_s, found.wait_s


def _errors(analysis: TraceAnalysis) -> str:
    report = analysis.report
    replayed = f"{seconds(report.predicted_step_s)} ({signed(report.error)})"
    bars = [
        Bar("measured", report.measured_step_s, seconds(report.measured_step_s), "c0"),
        Bar("replay", report.predicted_step_s, replayed, "c2"),
    ]
    for name, value in analysis.baselines.items():
        told = f"{seconds(value)} ({signed(value / report.measured_step_s - 1)})"
        bars.append(Bar(BASELINES[name], value, told))
    chart = bars_chart(bars, "Measured and predicted time of a step", report.measured_step_s)
    lead = "How far the simulation is to be trusted, and what simpler predictions would have said."
    return shell.section("Replay against measurement", lead, shell.figure(chart))
