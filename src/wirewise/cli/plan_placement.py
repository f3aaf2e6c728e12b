"""`wirewise plan placement`: the host of each task of mini-batch GNN training, or the device of each op of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from wirewise import options as opt
from wirewise.cli.options import GivenOptions, with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_deployment import DeploymentOptions, deployment
from wirewise.cli.plan_job import OutOption, make_plan, print_plan
from wirewise.cli.sampling import Tasks, chosen_tasks
from wirewise.cli.topo import open_topology
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners import planner as find_planner
from wirewise.planners.placement import STARTS, PlacementProblem, problem_of
from wirewise.plans import PlacementPlan
from wirewise.plans.placement import FlowPolicy
from wirewise.report.figures import seconds
from wirewise.trace.tasks import write_tasks

__all__ = ["placement"]

_SHOWN: tuple[FlowPolicy, ...] = ("iter", "oes")
"""Policies that every comparison shows."""


class Search(opt.Options, frozen=True, kw_only=True):
    """Options of planners of placements."""

    policy: Annotated[FlowPolicy, opt.about("Order of flows.")] = "iter"
    steps: Annotated[opt.Natural | None, opt.about("Placements to try, by default 1000.")] = None
    seed: opt.Seed = 0


_PLANNERS_HELP = (
    f"Planner: for tasks one of {', '.join(PLANNERS['placement'])}, by default the first; for a model one of "
    f"{', '.join(PLANNERS['deployment'])}, by default the first."
)


@with_options
def placement(
    topology: Annotated[str, typer.Option(help="A preset (`wirewise topo list`) or a file.")],
    cli_options: GivenOptions[Tasks],
    search: GivenOptions[Search],
    deployed: GivenOptions[DeploymentOptions],
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL.py:NAME|PROFILE]",
            help="Model to deploy, a function that returns it and an input, or a file of `wirewise profile stages`.",
        ),
    ] = None,
    method: Annotated[str | None, typer.Option("--with", help=_PLANNERS_HELP)] = None,
    out: OutOption = None,
    job_out: Annotated[
        Path | None, typer.Option(help="File that takes the tasks and flows, for `wirewise check --job`.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Place the samplers, workers and parameter servers of GNN training on hosts, or a model's ops on devices.

    With --dataset, traffic is computed from the batches that training will sample, without a profiling run. With
    MODEL, ops are placed on unequal devices, which the topology lists with their speeds. All times are simulated.
    """
    if method is None:
        method = next(iter(PLANNERS["placement" if model is None else "deployment"]))
    if method in PLANNERS["deployment"]:
        if model is None:
            raise InputError(
                f"--with {method} deploys a model; give MODEL.py:NAME or a file of `profile stages`"
            )
        if named := sorted((cli_options.named | search.named) - {"seed", "job_out"}) or (
            ["job_out"] if job_out else []
        ):
            raise InputError(f"--{named[0].replace('_', '-')} is for tasks of GNN training, not for a model")
        deployment(model, open_topology(topology), method, deployed.record(), search.record().seed, out, json)
        return
    if model is not None and method not in PLANNERS["placement"]:
        # It is none of models either, and this says so.
        find_planner("deployment", method)
    if model is not None or deployed.named:
        what = "MODEL" if model is not None else f"--{min(deployed.named).replace('_', '-')}"
        raise InputError(
            f"{what} is for planners of models ({', '.join(PLANNERS['deployment'])}), and {method!r} places tasks"
        )
    hosts, asked = open_topology(topology), search.record()
    tasks = chosen_tasks(cli_options, [host.name for host in hosts.hosts], asked.seed)
    problem = problem_of(tasks, hosts)
    found = make_plan(PlacementPlan, method, problem, **msgspec.structs.asdict(asked))
    if job_out is not None:
        write_tasks(tasks, job_out)
    compared = _compare(problem, found, asked.seed)
    record = {"plan": msgspec.to_builtins(found), "simulated": compared}
    print_plan(found, out, json, *_summary_lines(found, compared), record=record)


def _compare(problem: PlacementProblem, found: PlacementPlan, seed: int) -> dict[str, dict[str, float]]:
    """Simulated seconds of this plan and of the rules, by policy, and the bound of each placement."""
    plans = {found.planner: found}
    for rule in STARTS:
        with suppress(PlanError):
            plans.setdefault(rule, make_plan(PlacementPlan, rule, problem, policy=found.policy, seed=seed))
    compared = {}
    for name, one in plans.items():
        places = np.array([task.host for task in one.tasks])
        times: dict[str, float] = {
            policy: problem.simulator.seconds(places, policy) for policy in (*_SHOWN, found.policy)
        }
        compared[name] = {**times, "lower_bound_s": one.lower_bound_s}
    return compared


def _summary_lines(found: PlacementPlan, compared: dict[str, dict[str, float]]) -> Iterator[Said]:
    said = (
        f"{found.iterations} iterations of {len(found.tasks)} tasks on {found.world_size} hosts take "
        f"{seconds(found.predicted_s)} simulated under {found.policy}"
    )
    if found.colocated_s > 0:
        gain = 1 - found.predicted_s / found.colocated_s
        said += f", {gain:.1%} less than colocated ({seconds(found.colocated_s)})"
    over = found.predicted_s / found.lower_bound_s if found.lower_bound_s > 0 else 1.0
    yield f"{said}; {over:.2f} times the bound of these places."
    yield found.table()
    titles = [
        "placement",
        *(f"{name} s" for name in next(iter(compared.values())) if name != "lower_bound_s"),
    ]
    rows = [[name, *(f"{value:.4g}" for value in times.values())] for name, times in compared.items()]
    yield [*titles, "lower bound s"], rows
    yield (
        f"Whatever the sizes, oes takes at most {found.competitive_ratio:.0f} times the shortest possible time here, "
        "because so many flows can share an interface."
    )
