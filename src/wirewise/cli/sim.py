"""`wirewise sim`: replay of a trace, with changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from wirewise.cli.output import print_table, write_json
from wirewise.report import replay_rows
from wirewise.report.figures import seconds, signed
from wirewise.report.replay_json import report_object
from wirewise.sim import ReplayReport, parse, record, replay_steps
from wirewise.sim.analysis import baselines
from wirewise.trace import load

__all__ = ["simulate"]

_DEVICES = (
    "kernels and what launches them count as compute alike here, and kernels do not tell what they wait for; "
    "`wirewise trace show` keeps host and device apart"
)


def simulate(sources: Sequence[Path], what_if: str, json: str | None) -> None:
    """Replay a trace and print and write what was found."""
    # A change that is not understood is refused before the work.
    changes = parse(what_if)
    trace = load(sources)
    if any(op.stream for rank in trace.ranks for op in rank.ops):
        trace.notes.insert(0, _DEVICES)
    recording = record(trace)
    report = replay_steps(
        recording.steps, recording.links, interference=recording.interference, what_if=changes
    )
    simple = baselines(recording)
    write_json(json, report_object(trace, report, recording.links, simple))
    if json == "-":
        return
    typer.echo(_sentence(report, what_if))
    for rows in (
        replay_rows.breakdown_rows(report.breakdown, report.what_if),
        replay_rows.critical_rows(report.what_if or report),
        replay_rows.baseline_rows(report, simple),
    ):
        typer.echo()
        print_table(*rows)
    for note in trace.notes:
        typer.echo(f"Note: {note}")


def _sentence(report: ReplayReport, what_if: str) -> str:
    low, high = report.error_ci95
    said = (
        f"A step of {report.ranks} ranks takes "
        f"{seconds(report.measured_step_s)} measured and {seconds(report.predicted_step_s)} replayed (error "
        f"{signed(report.error)}, 95 % interval {signed(low)} to {signed(high)}, {report.steps} steps)"
    )
    if report.what_if is None:
        return f"{said}."
    after = report.what_if
    low, high = after.ci95_s
    return (
        f"{said}; with {what_if} it would take {seconds(after.predicted_step_s)} (95 % interval {seconds(low)} to "
        f"{seconds(high)}, {signed(after.predicted_step_s / report.predicted_step_s - 1)})."
    )
