"""`wirewise plan reshard`: move a tensor from one layout on a mesh of ranks to another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import msgspec

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_job import OutOption, make_plan, planner_option, print_plan
from wirewise.cli.topo import open_topology
from wirewise.cost.links import Links
from wirewise.plans import LaidOutTensor, ReshardPlan, parse_sharding
from wirewise.plans.sharding import ITEM_BYTES
from wirewise.report.figures import seconds
from wirewise.units import format_size, parse_size

__all__ = ["ReshardOptions", "reshard"]


class ReshardOptions(opt.Options, frozen=True, kw_only=True):
    """Tensor, its two layouts, and the ranks between which it moves."""

    source: Annotated[
        str,
        opt.about(
            "Layout before: a mesh, then R or S with axes for each dimension, such as 2x4:S0,R,R or "
            "2x4@0-7:S01,R; a last P0 says that ranks along axis 0 hold partial sums.",
            option="--from",
        ),
    ]
    target: Annotated[
        str,
        opt.about("Layout after; without @RANKS on the ranks that follow those of --from.", option="--to"),
    ]
    shape: Annotated[tuple[opt.Natural, ...], opt.about("Shape of the tensor, such as 1024,1024,512.")]
    topology: Annotated[str, opt.about("Topology of all ranks, a preset such as lab-4x2@200mbit, or a file.")]
    dtype: Annotated[str, opt.about("Data type of the elements.", words=ITEM_BYTES)] = "float32"
    strategy: Annotated[
        str | None,
        opt.about(
            "Strategy: p2p, local_all_gather, global_all_gather, ring or trees; by default the fastest."
        ),
    ] = None
    order: Annotated[str | None, opt.about("Planner of senders and rounds, by default the fastest.")] = None
    chunk: Annotated[str | None, opt.about("Chunk size for forwarding, such as 64KiB.")] = None
    seed: opt.Seed = 0

    @property
    def tensor(self) -> LaidOutTensor:
        """Tensor with both layouts."""
        before = parse_sharding(self.source)
        after = parse_sharding(self.target, first_rank=max(before.ranks) + 1)
        return LaidOutTensor(name="tensor", shape=self.shape, dtype=self.dtype, source=before, target=after)


@with_options
def reshard(
    options: ReshardOptions,
    planner: str = planner_option("reshard"),
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Choose senders, routes and order to move a tensor between meshes, and print the lower bound on time."""
    links = Links.of(open_topology(options.topology))
    chunk = None if options.chunk is None else parse_size(options.chunk)
    knobs = {"strategy": options.strategy, "order": options.order, "chunk_bytes": chunk, "seed": options.seed}
    begin = time.perf_counter()
    found = make_plan(ReshardPlan, planner, options.tensor, links, **knobs)
    planning_s = time.perf_counter() - begin
    print_plan(found, out, json, *_summary_lines(found, planning_s), record=_record(found, planning_s))


def _record(found: ReshardPlan, planning_s: float) -> dict[str, object]:
    told = ("strategy", "order", "predicted_s", "bound_s", "bytes_sent", "bytes_between_hosts", "rounds")
    return {
        **{name: getattr(found, name) for name in (*told, "candidates")},
        "planning_s": planning_s,
        "plan": msgspec.to_builtins(found),
    }


def _summary_lines(found: ReshardPlan, planning_s: float) -> Iterator[Said]:
    over = f", {found.predicted_s / found.bound_s:.3f} times the bound" if found.bound_s else ""
    yield (
        f"{found.strategy} in {found.rounds} rounds takes {seconds(found.predicted_s)} simulated{over} "
        f"({seconds(found.bound_s)}); {format_size(found.bytes_sent)} leave a rank, "
        f"{format_size(found.bytes_between_hosts)} a host."
    )
    yield found.table()
    yield f"{_why(found)} Planned in {seconds(planning_s)}."


def _why(found: ReshardPlan) -> str:
    if not found.busiest.hosts:
        return "Nothing passes between hosts."
    hosts = ", ".join(map(str, found.busiest.hosts))
    way = "must leave" if found.busiest.direction == "out" else "must enter"
    return (
        f"No plan is quicker than the bound: {format_size(found.busiest.size_bytes)} {way} host {hosts} at "
        f"{format_size(round(found.busiest.bandwidth_bytes_per_s))}/s."
    )
