"""`wirewise plan jobs`: which cluster runs each job of a queue, when, and with how much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_job import OutOption, make_plan, planned_with, tell
from wirewise.errors import InputError
from wirewise.planners import PLANNERS
from wirewise.planners import planner as find_planner
from wirewise.planners.jobs import JobProblem
from wirewise.plans import JobPlan
from wirewise.report.figures import count, factor, seconds
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue
from wirewise.trace import JobQueue, read_queue, write_queue

__all__ = ["jobs"]

_DRAWN = {"even": (EVEN, 3.0), "uneven": (UNEVEN, 6.0)}
"""Clusters and jobs a slot of the queues that are drawn."""


class Scheduled(opt.Options, frozen=True, kw_only=True):
    """What a scheduler is told beside the queue."""

    kept: Annotated[
        float,
        opt.about(
            "Share of a slot's progress that is left to a job that was resized, moved or stopped before it."
        ),
    ] = 0.5
    window: Annotated[opt.Count, opt.about("Oldest jobs that a cluster chooses from.")] = 10
    compare: Annotated[bool, opt.about("Whether all other planners are told beside.")] = True
    seed: opt.Seed = 0


@with_options
def jobs(
    queue: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE",
            help="File of jobs, kinds and clusters, or a queue to draw: even (three clusters of 16 and 16) or uneven "
            "(six of 4 to 32).",
        ),
    ],
    asked: Scheduled,
    planner: str = planned_with("jobs"),
    out: OutOption = None,
    job_out: Annotated[
        Path | None, typer.Option(help="File that takes the queue, for `wirewise check --job`.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Schedule a queue of training jobs on clusters for the least mean time from arrival to end.

    All times are simulated. Planners know how fast kinds of jobs are, and not a job's own pace.
    """
    find_planner("jobs", planner)
    found_queue = _queue(queue, asked.seed)
    problem = JobProblem(found_queue, asked.kept, asked.window)
    found = make_plan(JobPlan, planner, problem, seed=asked.seed)
    if job_out is not None:
        write_queue(found_queue, job_out)
    others = [name for name in PLANNERS["jobs"] if name != planner] if asked.compare else []
    plans = {planner: found} | {name: make_plan(JobPlan, name, problem, seed=asked.seed) for name in others}
    compared = {name: _figures(one, problem) for name, one in plans.items()}
    record = {"plan": msgspec.to_builtins(found), "simulated": compared}
    tell(found, out, json, *_said(found, compared), record=record)


def _queue(source: str, seed: int) -> JobQueue:
    if source in _DRAWN and not Path(source).exists():
        clusters, rate = _DRAWN[source]
        return draw_queue(clusters, rate, seed=seed)
    if not Path(source).exists():
        raise InputError(f"{source}: no such file; expected one, or a queue to draw: {', '.join(_DRAWN)}")
    return read_queue(source)


def _figures(plan: JobPlan, problem: JobProblem) -> dict[str, float]:
    ends: dict[str, int] = {}
    for one in plan.allotments:
        ends[one.job] = one.end
    taken = np.array([(ends[job.name] - job.arrival) * plan.slot_s for job in problem.queue.queue])
    return {
        "mean_completion_s": plan.mean_completion_s,
        "p99_completion_s": float(np.percentile(taken, 99)),
        "makespan_s": plan.predicted_s,
    }


def _said(found: JobPlan, compared: dict[str, dict[str, float]]) -> Iterator[Said]:
    jobs = len({one.job for one in found.allotments})
    said = (
        f"{count(jobs, 'job')} on {count(found.world_size, 'cluster')} take {seconds(found.mean_completion_s)} on "
        f"average from arrival to end, simulated under {found.planner}"
    )
    others = {name: one["mean_completion_s"] for name, one in compared.items() if name != found.planner}
    if others:
        best = min(others, key=lambda name: others[name])
        said += f", {factor(found.mean_completion_s / others[best])} of the time under {best}, the best of the others"
    yield f"{said}."
    yield found.table()
    for line in found.notes:
        yield f"Note: {line}."
    if others:
        ranked = sorted(compared.items(), key=lambda item: item[1]["mean_completion_s"])
        yield (
            ["planner", "mean s", "99 of 100 within s", "all done s"],
            [[name, *(f"{value:.4g}" for value in one.values())] for name, one in ranked],
        )
