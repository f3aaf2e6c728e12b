"""`wirewise advise`: find the bottleneck of a job, and what to change about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wirewise.cli.output import Said, print_text, progress, run_folder, write_out
from wirewise.cli.topo import open_topology
from wirewise.errors import InputError
from wirewise.report.figures import seconds, signed
from wirewise.results import CompressionAdvice
from wirewise.units import format_size

if TYPE_CHECKING:
    from wirewise.advice.options import AdviceOptions, TraceSource
    from wirewise.advice.records import Advice

__all__ = ["advise", "advise_trace"]


def advise_trace(source: TraceSource, command: Sequence[str], out: Path | None, json: str | None) -> None:
    """Advise on a recorded run.

    Raises:
        InputError: A command was given with the run, or the run is unusable.
    """
    from wirewise.advice import reading
    from wirewise.cost.gradients import load_costs

    if command:
        raise InputError(
            f"got --trace {source.trace[0]} and the command {' '.join(command)!r}; expected one of them: the run that "
            "is recorded already, or the command to run"
        )
    topology = None if source.topology is None else open_topology(source.topology)
    costs = None if source.costs is None else load_costs(source.costs)
    with run_folder(out, "advise") as folder:
        with progress() as log:
            found = reading.advise(source.trace, topology, folder=folder, costs=costs, log=log)
        page = found.save(folder)
    write_out(json, msgspec.to_builtins(found), *_answer(found, page))


def _answer(found: Advice, page: Path) -> Iterator[Said]:
    """Lines and tables of an advice."""
    yield found.bound_reason
    yield found.advice
    yield ""
    yield found.table()
    yield ""
    yield ["family without a candidate", "why"], [list(row) for row in found.not_applicable.items()]
    yield ""
    yield from _trust(found)
    if found.lines:
        yield "To write:"
    yield from (f"    {line}" for line in found.lines)
    yield from (f"Note: {note}." for note in found.notes)
    yield f"Page: {page}"


def _trust(found: Advice) -> Iterator[Said]:
    """How far predictions are off on this trace."""
    if found.prediction_error is None:
        return
    unseen = found.held_out_error
    held_out = "unknown, as there are fewer than six" if unseen is None else f"{unseen:.1%}"
    yield f"Replayed as it is, the job is off by {signed(found.prediction_error)}; in steps not seen: {held_out}."


def advise(command: Sequence[str], out: Path | None, options: AdviceOptions, json: str | None) -> None:
    """Record the command, measure, plan, try plans, and print the advice.

    Raises:
        InputError: No command was given.
        PeerError: The command failed.
    """
    if not command:
        raise InputError("no command was given; expected one after --, such as -- torchrun train.py")
    # Needs torch, which takes seconds to import.
    from wirewise.advice import running

    with run_folder(out, "advise") as folder:
        found = running.advise_command(
            command, folder, lambda text: print_text(text, err=json == "-"), options
        )
    write_out(json, msgspec.to_builtins(found), *_answer(found, folder / "advice.html"), *_of_codecs(found))


def _of_codecs(found: Advice) -> Iterator[Said]:
    """Measurements of gradients, codecs and collectives."""
    if found.compression is not None:
        yield ""
        yield from _measurements(found.compression)


def _measurements(found: CompressionAdvice) -> Iterator[Said]:
    even = found.break_even_bytes_per_s
    yield (
        ["gradients and codecs", ""],
        [
            ["gradients", f"{format_size(found.gradient_bytes)} on {found.ranks} ranks"],
            ["a step as it is, measured", seconds(found.measured_step_s)],
            ["the same, predicted", f"{seconds(found.predicted_ddp_s)} ({signed(found.prediction_error)})"],
            ["best buckets without compression, predicted", seconds(found.predicted_plain_s)],
            ["best plan, predicted", seconds(found.predicted_step_s)],
            ["no plan takes less than", seconds(found.lower_bound_s)],
            *([f"best plan ({way}), measured", seconds(own)] for way, own in found.tried_step_s.items()),
            [
                "all-reduces, measured",
                f"{seconds(found.latency_s)} and {8e-6 * found.bandwidth_bytes_per_s:.0f} Mbit/s of each rank",
            ],
            ["compressing pays below", "no rate" if even is None else f"{8e-6 * even:.0f} Mbit/s"],
        ],
    )
    yield found.sentence
