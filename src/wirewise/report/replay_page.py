"""One HTML file about a trace: what bounds the step, where it goes, what changes would give."""

from __future__ import annotations

from html import escape

from wirewise.report import replay_rows, shell
from wirewise.report.figures import MISSING, percent, seconds
from wirewise.report.replay_bars import Bar, bars_chart, parts_chart, parts_legend
from wirewise.report.replay_rows import BASELINES, Rows, signed
from wirewise.report.waterfall import shown_ranks, waterfall, waterfall_legend
from wirewise.sim.analysis import Analysis
from wirewise.sim.diagnose import words
from wirewise.trace.records import Trace

__all__ = ["replay_html"]


def replay_html(trace: Trace, analysis: Analysis) -> str:
    """The page as text."""
    report, ranks = analysis.report, shown_ranks(trace, analysis.diagnosis.straggler_rank)
    kind = f"wirewise trace \N{MIDDLE DOT} {trace.world_size} ranks, {report.steps} steps"
    hosts = list(dict.fromkeys(rank.header.host for rank in trace.ranks))
    sections = [
        shell.head(kind, analysis.diagnosis.sentence),
        _cards(analysis),
        _step(trace, analysis, ranks),
        _parts(analysis, ranks),
        _section(
            "Critical path",
            f"The ops that decide when step {analysis.step} ends, longest first.",
            replay_rows.critical_rows(report),
        ),
        _what_ifs(analysis),
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
        _notes(trace),
    ]
    return shell.page(f"Trace of {trace.world_size} ranks", sections)


def _section(title: str, lead: str, rows: Rows) -> str:
    return shell.section(title, lead, shell.table(*rows))


def _cards(analysis: Analysis) -> str:
    report, found = analysis.report, analysis.diagnosis
    low, high = report.error_ci95
    exposed = report.breakdown.exposed_communication_s
    return shell.cards(
        [
            (
                "Step, measured",
                seconds(report.measured_step_s),
                f"mean of {report.steps} steps and all ranks",
            ),
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
                words(found.best_change) if found.best_change else "none gives 1 %",
            ),
            (
                "Straggler",
                MISSING if found.straggler_rank is None else f"rank {found.straggler_rank}",
                "no rank computes much longer than the others"
                if found.straggler_rank is None
                else f"{seconds(analysis.compute_s[found.straggler_rank])} of compute a step",
            ),
        ]
    )


def _step(trace: Trace, analysis: Analysis, ranks: list[int]) -> str:
    chart = waterfall(trace, analysis.step, analysis.critical, ranks)
    left = trace.world_size - len(ranks)
    lead = (
        f"Step {analysis.step}, whose time is nearest to the median, as it was recorded. Each rank has three "
        "lanes: compute, communication, and waiting for communication or data. A communication is drawn from "
        f"when the last rank had come and its turn was there.{f' {left} ranks are not shown.' if left else ''}"
    )
    body = waterfall_legend(trace, analysis.step) + f"<figure>{chart}</figure>" if chart else ""
    return shell.section("One step", lead, body)


def _parts(analysis: Analysis, ranks: list[int]) -> str:
    chart = parts_chart({rank: analysis.ranks[rank] for rank in ranks})
    lead = f"Step {analysis.step} of each rank, replayed. Exposed: a transfer runs and the rank does nothing else."
    mean = shell.table(*replay_rows.breakdown_rows(analysis.report.breakdown))
    body = f"{parts_legend()}<figure>{chart}</figure><h3>All steps</h3>{mean}" if chart else ""
    return shell.section("Exposed and overlapped communication", lead, body)


def _what_ifs(analysis: Analysis) -> str:
    base = analysis.report.predicted_step_s
    bars = [Bar("as it is", base, "", "c0")]
    for row in analysis.what_ifs:
        if row.prediction is not None:
            after = row.prediction.predicted_step_s
            colour = "c2" if row.change == analysis.diagnosis.best_change else "c1"
            bars.append(Bar(words(row.change), after, signed(after / base - 1), colour))
    chart = bars_chart(bars, "Time of a step with each change", base)
    table = shell.table(*replay_rows.what_if_rows(analysis))
    lead = "Every change alone, simulated; the dashed line is the step as it is. Try others: wirewise sim --what-if."
    return shell.section("What changes would give", lead, f"<figure>{chart}</figure>{table}" if chart else "")


def _errors(analysis: Analysis) -> str:
    report = analysis.report
    bars = [
        Bar("measured", report.measured_step_s, "", "c0"),
        Bar("replay", report.predicted_step_s, signed(report.error), "c2"),
    ]
    for name, value in analysis.baselines.items():
        bars.append(Bar(BASELINES[name], value, signed(value / report.measured_step_s - 1), "c1"))
    chart = bars_chart(bars, "Measured and predicted time of a step", report.measured_step_s)
    lead = "How far the simulation is to be trusted, and what simpler predictions would have said."
    return shell.section("Replay against measurement", lead, f"<figure>{chart}</figure>" if chart else "")


def _notes(trace: Trace) -> str:
    told = [
        "Measured: the steps, the ops and the waterfall. Everything else on this page is simulated, with links "
        "and interference fitted from the trace itself.",
        *(
            ["All ranks are on one host: its transfers cross no link, so changes of links were not tried."]
            if len({rank.header.host for rank in trace.ranks}) == 1 and trace.world_size > 1
            else []
        ),
        *trace.notes,
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in told)
    facts = next((rank.header.environment for rank in trace.ranks if rank.header.environment), {})
    rows = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in facts.items())
    return shell.section("Notes", "", f'<ul class="how">{items}</ul>{f"<dl>{rows}</dl>" if rows else ""}')
