"""`wirewise bench`: time collectives for many programs and message sizes on the ranks of a running job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wirewise import options as opt
from wirewise.cli.options import need_ranks, with_options
from wirewise.cli.output import JsonOption, write_out
from wirewise.cli.plan_collective import parse_collective
from wirewise.cli.sources import program_of
from wirewise.collective import BUILDERS, COLLECTIVES, PLAIN, Collective, algorithms, build
from wirewise.errors import InputError, ProgramError
from wirewise.report.figures import seconds
from wirewise.units import format_rate, format_size, parse_size

if TYPE_CHECKING:
    from wirewise.collective import Program

__all__ = ["app", "bus_factor"]

app = typer.Typer(no_args_is_help=True, help="Measure on the ranks of a running job.")


@app.callback()
def _benches() -> None:
    """Measure on the ranks of a running job; start it by torchrun or `wirewise lab run`."""


class Sweep(opt.Options, frozen=True, kw_only=True):
    """Message sizes to sweep, and how each is timed."""

    collective: Annotated[str, opt.about(f"Collective, one of {', '.join(COLLECTIVES)}.")] = "all_reduce"
    sizes: Annotated[
        opt.Distinct, opt.about("Message sizes: the larger of a rank's input and output buffers.")
    ] = ("4KB", "64KB", "1MB", "16MB")
    programs: Annotated[
        tuple[str, ...], opt.about("Algorithms, program files or plans; by default all algorithms.")
    ] = ()
    repeats: Annotated[opt.Count, opt.about("Calls of each algorithm, interleaved with torch's own.")] = 5
    timeout_s: opt.Timeout = 120.0


@app.command()
@with_options
def collective(options: Sweep, json: JsonOption = None) -> None:
    """Time torch's own collective and programs for it, by message size; results must be equal on all ranks.

    A time is the median over calls of the slowest rank's time. Bus bandwidth is defined as in nccl-tests: traffic per
    link under the optimal algorithm for uniform links.
    """
    need_ranks("bench collective")
    kind, wanted = parse_collective(options.collective), [parse_size(size) for size in options.sizes]
    # Needs torch, which takes seconds to import.
    from wirewise.trials.rank import join_job

    with join_job(options.timeout_s) as transport:
        chosen, left_out = _programs(kind, options.programs, transport.world_size)
        rows = _rows(chosen, wanted, options.repeats, options.timeout_s)
    if transport.rank:
        return
    titles = [kind, "program", "time", "bus bandwidth", "torch's own", "times as fast"]
    record = {"collective": kind, "repeats": options.repeats, "rows": rows, "left_out": left_out}
    told = (f"Left out: {line}." for line in left_out)
    write_out(json, record, (titles, [_cells(kind, row) for row in rows]), *told)


def bus_factor(kind: Collective, ranks: int) -> float:
    """Factor from algorithm bandwidth to bus bandwidth, as in nccl-tests."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce") else (ranks - 1) / ranks


def _programs(kind: Collective, words: Sequence[str], ranks: int) -> tuple[list[Program], list[str]]:
    """Programs to run, and why some algorithms are left out."""
    if words:
        found = [build(kind, w, ranks) if (kind, w) in BUILDERS | PLAIN else program_of(w) for w in words]
        wrong = next((p for p in found if p.collective != kind or p.ranks != ranks), None)
        if wrong is not None:
            raise InputError(
                f"program {wrong.name!r} is a {wrong.collective} of {wrong.ranks} ranks; expected {kind} of {ranks}"
            )
        return found, []
    found, left_out = [], []
    for algorithm in algorithms(kind):
        try:
            found.append(build(kind, algorithm, ranks))
        except ProgramError as error:
            left_out.append(f"{algorithm}: {error}")
    return found, left_out


def _rows(programs: list[Program], sizes: list[int], repeats: int, timeout_s: float) -> list[dict[str, Any]]:
    from wirewise.runtime.collective.measure import compare

    rows = []
    for size_bytes in sizes:
        for program in programs:
            found = compare(program, size_bytes, repeats=repeats, timeout_s=timeout_s)
            if found is not None:
                kept = ("algorithm", "ranks", "size_bytes", "measured_s", "builtin_s")
                rows.append({key: found[key] for key in kept})
    return rows


def _cells(kind: Collective, row: dict[str, Any]) -> list[str]:
    return [
        format_size(row["size_bytes"]),
        row["algorithm"],
        seconds(row["measured_s"]),
        format_rate(bus_factor(kind, row["ranks"]) * row["size_bytes"] / row["measured_s"]),
        seconds(row["builtin_s"]),
        f"{row['builtin_s'] / row['measured_s']:.2f}",
    ]
