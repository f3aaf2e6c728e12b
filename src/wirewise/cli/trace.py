"""`wirewise trace`: merge, align, explain and export traces of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wirewise.cli.output import JsonOption, Said, progress, writable_file, write_out
from wirewise.errors import InputError

if TYPE_CHECKING:
    from wirewise.report.replay_rows import TextTable
    from wirewise.trace import Trace

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Traces of all ranks: put together, aligned, explained and exported."
)

_Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR|FILES...",
        help="A run folder; or folders and files that together hold all ranks, of wirewise or of torch.profiler.",
    ),
]


@app.command()
def merge(
    sources: _Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")],
    json: JsonOption = None,
) -> None:
    """Merge the ranks of several folders or torch.profiler files into one run folder."""
    from wirewise.trace import open_trace, write_trace

    _check_new(out)
    trace = open_trace(sources)
    write_trace(trace, out)
    counts = {
        "folder": str(out),
        "ranks": trace.world_size,
        "hosts": len({rank.header.host for rank in trace.ranks}),
        "steps": len(trace.steps()),
        "ops": sum(len(rank.ops) for rank in trace.ranks),
    }
    told = ", ".join(f"{value} {name}" for name, value in counts.items() if name != "folder")
    write_out(json, {**counts, "notes": trace.notes}, f"{out}: {told}", *_notes(trace))


@app.command()
def align(
    sources: _Sources,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder of the aligned trace.")] = None,
    json: JsonOption = None,
) -> None:
    """Show offset, drift and uncertainty of each rank's clock, and write the run on one clock."""
    from wirewise.report import replay_rows
    from wirewise.trace import clock_quality, load, write_trace

    if out is not None:
        _check_new(out)
    trace = load(sources)
    found = clock_quality(trace)
    if out is not None:
        write_trace(trace, out)
    ranks = [
        {
            "rank": rank.header.rank,
            "host": rank.header.host,
            "offset_s": fit.offset_s,
            "drift": fit.drift,
            "reference_s": fit.reference_s,
            "spread_s": quality.spread_s,
            "uncertainty_s": quality.uncertainty_s,
        }
        for rank, fit, quality in zip(trace.ranks, trace.offsets, found, strict=True)
    ]
    record = {"ranks": ranks, "out": None if out is None else str(out), "notes": trace.notes}
    written = [f"Aligned run: {out}"] if out is not None else []
    write_out(json, record, replay_rows.clock_rows(trace, found), *_notes(trace), *written)


@app.command()
def show(
    sources: _Sources,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Report to write, one HTML file.", callback=writable_file),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show the bottleneck of the step and the effect of changes, as tables or as a page.

    If an accelerator was recorded, or not all ranks were, each rank's own record is shown instead.
    """
    from wirewise.trace.sources import on_one_clock, open_trace
    from wirewise.trace.thinning import thin_steps

    with progress() as log:
        trace = open_trace(sources, partial=True, log=log)
        alone = bool(trace.partial) or any(op.stream for rank in trace.ranks for op in rank.ops)
        if not alone:
            log("aligning clocks")
            trace = thin_steps(on_one_clock(trace))
    if alone:
        _show_recorded(trace, html, json)
    else:
        _show_replayed(trace, html, json)


def _show_replayed(trace: Trace, html: Path | None, json: str | None) -> None:
    from wirewise.report import replay_rows as tables
    from wirewise.report.replay_json import analysis_object
    from wirewise.report.replay_page import replay_html
    from wirewise.sim.analysis import analyse

    with progress() as log:
        found = analyse(trace, log=log)
    rows = [
        tables.rank_rows(trace, found),
        tables.step_rows(found.report),
        tables.breakdown_rows(found.report.breakdown),
        tables.critical_rows(found.report),
        tables.what_if_rows(found),
        tables.baseline_rows(found.report, found.baselines),
    ]
    page = replay_html(trace, found) if html is not None else ""
    _show(trace, html, json, page, analysis_object(trace, found), found.diagnosis.sentence, rows)


def _show_recorded(trace: Trace, html: Path | None, json: str | None) -> None:
    from wirewise.report import usage_page as tables
    from wirewise.sim.arrivals import late_ranks
    from wirewise.sim.bounds import verdict_of
    from wirewise.sim.usage import collectives_of, rank_uses

    uses = rank_uses(trace)
    verdict = verdict_of(uses, late_ranks(trace.ranks, collectives_of(trace)))
    if trace.partial:
        trace.notes.insert(0, f"{trace.partial}; what is told here is of the others, nothing is replayed")
    else:
        trace.notes.insert(0, "kernels do not tell what they wait for, so no changes were simulated")
    rows = [one for one in (tables.use_rows(uses), tables.idle_rows(uses)) if one.rows]
    page = tables.usage_html(trace, uses, verdict) if html is not None else ""
    _show(trace, html, json, page, tables.usage_object(trace, uses, verdict), verdict.sentence, rows)


def _show(
    trace: Trace,
    html: Path | None,
    json: str | None,
    page: str,
    record: dict[str, Any],
    sentence: str,
    tables: Sequence[TextTable],
) -> None:
    from wirewise.report.shell import write_page

    if html is not None:
        write_page(page, html)
    spaced: list[Said] = [part for rows in tables for part in ("", rows)]
    written = [f"Report: {html}"] if html is not None else []
    write_out(json, record, sentence, *spaced, *_notes(trace), *written)


@app.command()
def export(
    sources: _Sources,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE.json[.gz]", help="The file to write.", callback=writable_file
        ),
    ],
    json: JsonOption = None,
) -> None:
    """Write the aligned run for Chrome's trace viewer and Perfetto, with the critical path of each step marked."""
    from wirewise.sim.analysis import critical_ops
    from wirewise.trace import chrome, load

    trace = load(sources)
    critical = critical_ops(trace)
    chrome.save(trace, out, critical=critical)
    ops = sum(len(rank.ops) for rank in trace.ranks)
    record = {"file": str(out), "ranks": trace.world_size, "ops": ops, "critical_ops": len(critical)}
    write_out(json, record, f"{out}: {trace.world_size} ranks, {ops} ops; open it in https://ui.perfetto.dev")


def _check_new(folder: Path) -> None:
    from wirewise.trace.files import rank_files

    if folder.is_dir() and rank_files(folder):
        raise InputError(
            f"{folder} holds a trace already; choose a new folder, or remove its rank-*.jsonl files"
        )


def _notes(trace: Trace) -> list[str]:
    return [f"Note: {note}" for note in trace.notes]
