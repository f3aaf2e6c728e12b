"""`wirewise plan placement MODEL`: devices, tensor splits and communication of a model's ops on unequal machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from wirewise import options as opt
from wirewise.cli.output import Said
from wirewise.cli.plan_job import make_plan, print_plan
from wirewise.cli.profile_stages import measure_stages, names_code
from wirewise.errors import InputError
from wirewise.planners import planner as find_planner
from wirewise.planners.placement.tag import problem_of
from wirewise.plans import DeploymentPlan
from wirewise.report.figures import factor, seconds
from wirewise.topology import Topology
from wirewise.trace import StageTrace, read_stage_trace
from wirewise.units import format_size

__all__ = ["DeploymentOptions", "deployment"]


class DeploymentOptions(opt.Options, frozen=True, kw_only=True):
    """Training step of the model, and limits of the planner's search."""

    batch: Annotated[opt.Count | None, opt.about("Rows of a step (MODEL), by default 8 per device.")] = None
    groups: Annotated[opt.Count, opt.about("Maximum number of operator groups (MODEL).")] = 12
    simulations: Annotated[
        opt.Count | None, opt.about("Strategies to simulate (MODEL), by default 2000.")
    ] = None
    profile: Annotated[
        list[str],
        opt.about(
            "TYPE=FILE: profile of the model on a device type of the topology (MODEL); may be repeated."
        ),
    ] = msgspec.field(default_factory=list)
    weights: Annotated[
        str | None, opt.about("Weights of tag's network (MODEL), by default those of wirewise.")
    ] = None


def deployment(
    model: str,
    topology: Topology,
    method: str,
    options: DeploymentOptions,
    seed: int,
    out: Path | None,
    json: str | None,
) -> None:
    """Plan the placement of a model, and print the plan.

    Args:
        model: Profile file, or code that returns a model.
        topology: Devices and links.
        method: Name of a planner.
        options: Training step and search limits.
        seed: Seed of random choices.
        out: File for the plan.
        json: Target of `JsonOption`.

    Raises:
        InputError: A file is unusable.
        PlanError: No plan fits the memory.
    """
    find_planner("deployment", method)
    trace = measure_stages(model, None) if names_code(model) else read_stage_trace(model)
    problem = problem_of(
        trace, topology, batch=options.batch, profiles=_profiles(options.profile), groups=options.groups
    )
    begin = time.perf_counter()
    found = make_plan(
        DeploymentPlan, method, problem, seed=seed, simulations=options.simulations, weights=options.weights
    )
    planning_s = time.perf_counter() - begin
    record = {
        "plan": msgspec.to_builtins(found),
        "predicted_step_s": found.predicted_step_s,
        "baseline_step_s": found.baseline_step_s,
        "placements": found.placements,
        "planning_s": planning_s,
    }
    print_plan(found, out, json, *_summary_lines(found, planning_s), record=record)


def _profiles(words: list[str]) -> dict[str, StageTrace]:
    found = {}
    for word in words:
        kind, _, file = word.partition("=")
        if not kind or not file:
            raise InputError(f"--profile is {word!r}; expected TYPE=FILE")
        found[kind] = read_stage_trace(file)
    return found


def _summary_lines(found: DeploymentPlan, planning_s: float) -> Iterator[Said]:
    quicker = factor(found.baseline_step_s / found.predicted_step_s)
    yield (
        f"A step of {found.batch} rows on {found.world_size} devices takes {seconds(found.predicted_step_s)} "
        f"simulated, {seconds(found.baseline_step_s)} data-parallel ({quicker}); a device needs at most "
        f"{format_size(max(found.predicted_bytes))}. Planned in {seconds(planning_s)}."
    )
    yield found.table()
    for line in found.notes:
        yield f"Note: {line}."
