"""`wirewise plan collective`: a program for a collective on a topology."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_job import OutOption, make_plan, planner_option, print_plan
from wirewise.cli.topo import open_topology
from wirewise.collective import COLLECTIVES, Collective, network
from wirewise.collective.symmetry import rank_classes
from wirewise.errors import InputError
from wirewise.planners.collective import CollectiveProblem
from wirewise.planners.collective.segments import HASHES
from wirewise.planners.collective.taccl import PROFILES, load_profile, load_sketch
from wirewise.plans import Certificate, CollectivePlan
from wirewise.report.figures import seconds
from wirewise.units import format_rate, format_size, parse_size

__all__ = ["collective", "parse_collective"]


class CollectiveOptions(opt.Options, frozen=True, kw_only=True):
    """Collective and topology, and limits of the search for a program."""

    topology: Annotated[str, opt.about("Topology, a preset (`wirewise topo list`) or a file.")]
    collective: Annotated[str, opt.about(f"Collective, one of {', '.join(COLLECTIVES)}.")] = "all_reduce"
    size: Annotated[
        str, opt.about("Larger buffer of a rank, in or out, such as 64MB.", option="--bytes", alias="--size")
    ] = "64MB"
    sketch: Annotated[Path | None, opt.about("Communication sketch, JSON (taccl).")] = None
    profile: Annotated[
        str | None, opt.about("Costs of links of the sketch, JSON, or a name such as ndv2-1MB.")
    ] = None
    kind: Annotated[list[str], opt.about("Kinds of links to use, such as nvlink; by default all.")] = (
        msgspec.field(default_factory=list)
    )
    ranks: Annotated[tuple[str, ...], opt.about("Names of the ranks allotted to the job.")] = ()
    members: Annotated[
        tuple[opt.Natural, ...], opt.about("Ranks of the group, such as 0,1,4; the others may forward.")
    ] = ()
    root: Annotated[int, opt.about("Rank of a rooted collective.")] = 0
    time_limit: Annotated[
        float | None,
        opt.about("Search budget, counted as work in seconds of an idle processor; by default 60."),
    ] = None
    seed: Annotated[int, opt.about("Random seed.")] = 0


@with_options
def collective(
    options: CollectiveOptions,
    planner: str = planner_option("collective"),
    out: OutOption = None,
    json: JsonOption = None,
) -> None:
    """Find a program for a collective, and report how close it is to the lower bound."""
    problem = CollectiveProblem(
        network=network(
            open_topology(options.topology), kinds=options.kind or None, ranks=options.ranks or None
        ),
        collective=parse_collective(options.collective),
        size_bytes=parse_size(options.size),
        root=options.root,
        members=tuple(sorted(options.members)),
    )
    knobs = {"time_budget_s": options.time_limit, "seed": options.seed}
    found = make_plan(
        CollectivePlan, planner, problem, **knobs, **_sketched(planner, options.sketch, options.profile)
    )
    classes = len(set(rank_classes(problem.network)))
    print_plan(found, out, json, *_summary_lines(found), record=_record(found) | {"classes": classes})


def parse_collective(text: str) -> Collective:
    """Parse a collective's name in any spelling: all_reduce, all-reduce, AllReduce.

    Raises:
        InputError: No collective has the name.
    """
    plain = text.lower().replace("-", "").replace("_", "")
    for known in COLLECTIVES:
        if known.replace("_", "") == plain:
            return known
    raise InputError(f"unknown collective {text!r}; expected one of: {', '.join(COLLECTIVES)}")


def _sketched(planner: str, sketch: Path | None, profile: str | None) -> dict[str, Any]:
    """Arguments of the planner that a sketch adds."""
    if sketch is None and profile is None:
        return {}
    if planner != "taccl":
        raise InputError(f"a sketch guides the planner taccl; got --with {planner}, give --with taccl")
    if sketch is None:
        raise InputError("got --profile alone; expected a --sketch FILE that it is for")
    costs = None if profile is None else PROFILES.get(profile) or load_profile(profile)
    return {"sketch": load_sketch(sketch), "profile": costs}


def _record(found: CollectivePlan) -> dict[str, Any]:
    own = (
        "planner", "collective", "topology", "size_bytes", "bound_s", "bound_routes_s", "predicted_s", "hashed_s",
        "synthesis_s",
    )  # fmt: skip
    return {
        **{name: getattr(found, name) for name in own},
        "planning_s": found.synthesis_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "algorithm": found.program.name,
        "ranks": found.world_size,
        "certificate": msgspec.to_builtins(found.certificate),
        "certificate_routes": msgspec.to_builtins(found.certificate_routes),
        "chunks": found.program.chunks,
        "steps": found.program.steps,
        "segments": found.program.segments,
        "candidates": [
            {"name": c.name, "predicted_s": c.predicted_s, "segments": c.segments} for c in found.candidates
        ],
        "notes": list(found.notes),
    }


def _summary_lines(found: CollectivePlan) -> Iterator[Said]:
    p, least_s = found.program, found.bound_s
    over = (
        f", {found.predicted_s / least_s:.2f} times the least possible {seconds(least_s)}" if least_s else ""
    )
    yield (
        f"{found.collective} of {format_size(found.size_bytes)} among {len(p.group)} ranks of {found.topology}: "
        f"{seconds(found.predicted_s)} simulated with {p.name} ({p.chunks} chunks, {p.steps} steps, {p.segments} "
        f"segments){over}."
    )
    if least_s:
        yield f"Why not faster: {_why(found.certificate)}."
    if found.bound_routes_s is not None and found.certificate_routes is not None:
        yield (
            f"The routes that programs take leave paths of the network unused: over them at least "
            f"{seconds(found.bound_routes_s)}, {found.predicted_s / found.bound_routes_s:.2f} times that; "
            f"{_why(found.certificate_routes)}."
        )
    if found.hashed_s is not None:
        yield (
            "Assumed: switches spread each pair of ranks evenly over its equal paths. With one connection a pair that "
            f"they hash to one path, the worst of {HASHES} hashes takes {seconds(found.hashed_s)}."
        )
    if found.candidates:
        rows = [[c.name, str(c.segments), seconds(c.predicted_s)] for c in found.candidates]
        yield ["candidate", "segments", "simulated"], rows
    yield from (f"Note: {note}." for note in found.notes)


def _why(certificate: Certificate) -> str:
    rate = format_rate(certificate.bandwidth_bytes_per_s)
    if certificate.cut:
        cut = ", ".join(map(str, certificate.cut))
        return f"all that leaves the ranks {cut} shares {rate}"
    parts = "; ".join(", ".join(map(str, part)) for part in certificate.parts) or "each rank"
    return f"all that passes between the parts ({parts}) shares {rate}"
