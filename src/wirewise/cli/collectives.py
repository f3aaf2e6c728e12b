"""`wirewise run collective`: run a program on all ranks, compared with torch's own collective."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wirewise import options as opt
from wirewise.cli.options import need_ranks, with_options
from wirewise.cli.output import JsonOption, Said, write_out
from wirewise.cli.sources import plan_of, program_of
from wirewise.cli.topo import open_topology
from wirewise.collective import network
from wirewise.collective.bounds import bound
from wirewise.plans import CollectivePlan
from wirewise.units import format_size, parse_size

if TYPE_CHECKING:
    from wirewise.collective import Program

__all__ = ["collective"]


class CollectiveComparison(opt.Options, frozen=True, kw_only=True):
    """Options for comparing a program with torch's own collective."""

    size: Annotated[
        str | None,
        opt.about("Bytes of the larger buffer of a rank; by default those of the plan, else 16MB."),
    ] = None
    topology: Annotated[
        str | None,
        opt.about("Topology for the lower bound, a preset or a file; a plan has its own."),
    ] = None
    repeats: Annotated[opt.Count, opt.about("Calls of each algorithm, interleaved.")] = 5
    deterministic: Annotated[
        bool,
        opt.about(
            "Sum in the same order in every run, for bit-equal results.",
            option="--deterministic/--no-deterministic",
        ),
    ] = False
    timeout_s: opt.Timeout = 120.0


@with_options
def collective(
    source: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A program file, a plan, or broadcast:binomial:4.")
    ],
    options: CollectiveComparison,
    json: JsonOption = None,
) -> None:
    """Run a program on the ranks of this job, and torch's own collective interleaved.

    Start it with torchrun, or in a lab: wirewise lab run --topology h4 -- -m wirewise run collective FILE
    """
    need_ranks("run collective FILE")
    program, plan = program_of(source), plan_of(source)
    size_bytes = parse_size(options.size) if options.size else plan.size_bytes if plan else _SIZE_BYTES
    record = _measure(program, size_bytes, options)
    if record is None:
        return
    record["bound_s"] = _bound_s(program, size_bytes, options.topology, plan)
    write_out(json, record, *_summary_lines(record))


_SIZE_BYTES = 16_000_000


def _bound_s(
    program: Program, size_bytes: int, topology: str | None, plan: CollectivePlan | None
) -> float | None:
    """Seconds that nothing can be faster than; None if no network is known."""
    if topology is not None:
        graph = network(open_topology(topology))
        return bound(
            graph, program.collective, size_bytes, root=program.root, members=program.members
        ).seconds
    # A bound grows in proportion to the size.
    return plan.bound_s * size_bytes / plan.size_bytes if plan else None


def _measure(program: Program, size_bytes: int, options: CollectiveComparison) -> dict[str, Any] | None:
    """Measurements of rank 0; None on the others."""
    # Needs torch, which takes seconds to import.
    from wirewise.runtime.collective.measure import compare
    from wirewise.trials.rank import join_job

    how = {name: getattr(options, name) for name in ("repeats", "deterministic", "timeout_s")}
    with join_job(options.timeout_s):
        return compare(program, size_bytes, **how)


def _summary_lines(record: dict[str, Any]) -> Iterator[Said]:
    measured, builtin, limit = record["measured_s"], record["builtin_s"], record["bound_s"]
    rows = [
        ["this program", f"{measured * 1e3:.2f} ms"],
        ["torch's own", f"{builtin * 1e3:.2f} ms, {builtin / measured:.2f} times as long"],
    ]
    if limit:
        rows.append(["the least possible", f"{limit * 1e3:.2f} ms, {limit / measured:.2f} of it is reached"])
    name = f"{record['collective']} of {format_size(record['size_bytes'])} by {record['algorithm']}"
    yield [f"{name}, {record['ranks']} ranks", f"median of {record['repeats']}"], rows
    late = max(record["edges"], key=lambda edge: edge["late_s"], default=None)
    if late is not None and late["late_s"]:
        yield f"Rank {record['rank']} waited longest for rank {late['source']}: {late['late_s']:.3f} s in all."
