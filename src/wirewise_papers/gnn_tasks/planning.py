"""Placements to execute, and their comparison with simulated times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from wirewise import options as opt
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.placement import PLANNERS, PlacementProblem
from wirewise.plans import PlacementPlan
from wirewise.runtime.flows.orders import ORDERS
from wirewise.sim.flows.measured import OpTimes, PlanComparison, compare_plan
from wirewise.trace.tasks import KINDS, TaskSet
from wirewise_papers.gnn_tasks.job import GnnTasksOptions, host_names
from wirewise_papers.gnn_tasks.records import PlacementRecord, PlacementRun
from wirewise_papers.own_links import resolve_links

__all__ = [
    "PAYLOAD_SHARE",
    "GnnTasksOptions",
    "PlacementJob",
    "compare",
    "lab_links",
    "lab_problem",
    "make_job",
    "summarise",
]

PAYLOAD_SHARE = 0.9
"""Fraction of a link's rate that hosts use in both directions at once: less than `TCP_PAYLOAD`, as acknowledgements of
the other direction take 0.02, and the remainder keeps queues short."""


class PlacementJob(opt.Options, frozen=True, kw_only=True):
    """Job file that the hosts read.

    Raises:
        InputError: There is no turn or no plan, plans are for another number of hosts, or the policy needs rates that
            chunks cannot provide.
    """

    tasks: TaskSet
    network: opt.HostNetwork = "lab"
    links: tuple[str, ...]
    """Rate of each host's link."""
    plans: dict[str, PlacementPlan]
    turns: opt.Count = 3
    """Number of turns of each plan; plans alternate."""
    timeout_s: opt.Timeout = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.plans:
            raise InputError("got no plan; expected one or more")
        for name, plan in self.plans.items():
            if plan.world_size != len(self.links):
                raise InputError(
                    f"plan {name!r} is for {plan.world_size} hosts; expected {len(self.links)}, one a link"
                )
            if plan.policy not in ORDERS:
                raise InputError(
                    f"plan {name!r} shares links under {plan.policy!r}, which chunks cannot follow; expected one of: "
                    f"{', '.join(ORDERS)}"
                )


def lab_links(links: tuple[str, ...]) -> Links:
    """Payload rates of lab hosts with these link rates."""
    return Links.of_lab(links, payload=PAYLOAD_SHARE)


def lab_problem(tasks: TaskSet, links: tuple[str, ...]) -> PlacementProblem:
    """Problem on lab hosts named host0, host1, ...

    Raises:
        InputError, PlanError: As `PlacementProblem`.
    """
    return PlacementProblem(tasks, host_names(len(links)), lab_links(links))


def make_job(
    options: GnnTasksOptions, tasks: TaskSet, log: Callable[[str], None] = lambda _: None
) -> PlacementJob:
    """Plan every method under every policy; plans are named METHOD:POLICY.

    Args:
        options: Methods, policies and hosts; links of an allocation are measured.
        tasks: Tasks to place.
        log: Called with progress messages.

    Raises:
        InputError, PlanError: As `PlacementProblem` and the planners.
    """
    options = resolve_links(options, options.hosts, log)
    problem = lab_problem(tasks, options.rates)
    plans = {
        f"{method}:{policy}": cast(
            PlacementPlan, PLANNERS[method](problem, policy=policy, steps=options.steps, seed=options.seed)
        )
        for policy in options.policies
        for method in options.methods
    }
    return PlacementJob(
        tasks=tasks,
        network=options.network,
        links=options.rates,
        plans=plans,
        turns=options.turns,
        timeout_s=options.timeout_s,
    )


def compare(job: PlacementJob, measurements: Mapping[str, Sequence[OpTimes]]) -> dict[str, PlanComparison]:
    """Compare each plan of a job, as measured, with its simulation."""
    simulator = lab_problem(job.tasks, job.links).simulator
    return {name: compare_plan(simulator, plan, measurements[name]) for name, plan in job.plans.items()}


def summarise(job: PlacementJob, comparisons: Mapping[str, PlanComparison]) -> PlacementRun:
    """Compare all plans of a job with the first one, as the result of the command."""
    first = comparisons[next(iter(job.plans))]
    return PlacementRun(
        emulated="executions of tasks are slept; links, TCP, bytes and the order of flows are real",
        network=job.network,
        hosts=len(job.links),
        links=job.links,
        tasks=len(job.tasks.tasks),
        iterations=job.tasks.iterations,
        turns=job.turns,
        plans={name: _record(job, name, comparisons[name], first) for name in job.plans},
        fastest=min(job.plans, key=lambda name: comparisons[name].measured_s),
    )


def _record(job: PlacementJob, name: str, one: PlanComparison, first: PlanComparison) -> PlacementRecord:
    plan, steps = job.plans[name], job.tasks.iterations
    places = plan.places
    crossing = [flow for flow in job.tasks.flows if places[flow.source] != places[flow.target]]
    worst = {kind: line for kind in (*KINDS, "flow") if (line := one.latest(kind)) is not None}
    return PlacementRecord(
        method=plan.planner,
        policy=plan.policy,
        simulated_s=one.simulated_s,
        measured_s=one.measured_s,
        turns_s=one.all_s,
        error=one.error,
        simulated_gain=1 - one.simulated_s / first.simulated_s,
        measured_gain=1 - one.measured_s / first.measured_s,
        lower_bound_s=plan.lower_bound_s / steps,
        crossing_bytes=sum(sum(job.tasks.numbers(flow.size_bytes)) for flow in crossing) / steps,
        latest={kind: (line.name, max(line.late_s, key=abs)) for kind, line in worst.items()},
    )
