"""`wirewise check` of plans: consistency, and fit to a topology and a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wirewise import plans
from wirewise.cli.programs import print_verdict
from wirewise.cli.topo import open_topology
from wirewise.errors import InputError, PlanError
from wirewise.plans import JobPlan, ParallelPlan, PlacementPlan, Plan

__all__ = ["check"]


def check(source: str, on: str | None, job: Path | None, json: str | None) -> bool:
    """Check that a plan is consistent and fits; print the first fault.

    Args:
        source: File of the plan.
        on: Topology to check against, a preset or a file. None if it is not checked.
        job: File of the tasks or the queue that the plan is for.
        json: Target of `JsonOption`.

    Raises:
        InputError: A file that cannot be read, or a job for a plan that has none.
        PlanError: The file holds no plan, or an inconsistent one.
    """
    plan = plans.load(source)
    found = list(_faults(plan, on, job))
    fits = " and ".join(str(what) for what in (on, job) if what is not None)
    right = "it is right"
    if isinstance(plan, ParallelPlan) and job is None:
        # A plan that lacks the last nodes of its graph is consistent: only the graph tells how many there are.
        right = "it is right in itself; --job compares it with its graph of operators"
    return print_verdict(
        source, found, f"{plan.headline}; {right}" + (f" and fits {fits}" if fits else ""), json
    )


def _faults(plan: Plan, on: str | None, job: Path | None) -> Iterator[str]:
    if job is not None and not isinstance(plan, (PlacementPlan, JobPlan, ParallelPlan)):
        raise InputError(
            f"got --job for a plan of {plan.family}; expected one of placement, jobs or parallel, which are made "
            "for one"
        )
    topology = None if on is None else open_topology(on)
    try:
        if topology is not None:
            plan.check(topology)
        # Each family loads what its own check needs: most need neither simulator nor compiler.
        if isinstance(plan, JobPlan) and job is not None:
            from wirewise.sim import predict
            from wirewise.trace import read_queue

            predict(plan, read_queue(job), None)
        if isinstance(plan, ParallelPlan) and job is not None:
            from wirewise.trace import read_operator_graph

            graph = read_operator_graph(job)
            plan.check_graph(graph.digest, len(graph.nodes))
        if not isinstance(plan, PlacementPlan):
            return
        from wirewise.planners.placement import faults, host_faults, problem_of
        from wirewise.trace import read_tasks

        tasks = None if job is None else read_tasks(job)
        if tasks is not None and topology is not None:
            yield from faults(plan, problem_of(tasks, topology))
        elif tasks is not None:
            plan.check_tasks(tasks.kinds)
        elif topology is not None:
            yield from host_faults(plan, tuple(host.name for host in topology.hosts))
    except PlanError as error:
        yield str(error)
