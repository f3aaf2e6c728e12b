"""`wirewise plan jobs`: which cluster runs each job of a queue, when, and with which resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import typer

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, Said
from wirewise.cli.plan_job import OutOption, make_plan, planner_option, print_plan
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners import planner as find_planner
from wirewise.planners.jobs import JobProblem
from wirewise.plans import JobPlan
from wirewise.report.figures import count, factor, seconds
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue, numbered_clusters
from wirewise.trace import JobQueue, read_queue, read_queue_log, read_speeds, write_queue

__all__ = ["jobs"]

_DRAWN = {"even": (EVEN, 3.0), "uneven": (UNEVEN, 6.0)}
"""Clusters and jobs a slot of the queues that are drawn."""


class QueueOptions(opt.Options, frozen=True, kw_only=True):
    """Scheduler options, apart from the queue."""

    kept: Annotated[
        float,
        opt.about("Fraction of a slot's progress that a job keeps after it was resized, moved or preempted."),
    ] = 0.5
    window: Annotated[
        opt.Count, opt.about("Scheduling window: the oldest waiting jobs that a cluster considers.")
    ] = 10
    patience: Annotated[
        opt.Natural,
        opt.about(
            "Waiting time, in slots, after which a job has priority over all later arrivals; 0: never."
        ),
    ] = 0
    log: Annotated[
        Literal["none", "helios", "philly", "pai"],
        opt.about("Cluster whose log QUEUE is; of pai the folder of its job and task tables."),
    ] = "none"
    clusters: Annotated[
        tuple[str, ...],
        opt.about("Processors and accelerators of clusters that share a log's jobs, such as 64x256,32x64."),
    ] = ()
    slot: Annotated[opt.Positive, opt.about("Seconds of a slot of a log, or of --speeds.")] = 60.0
    jobs: Annotated[opt.Natural, opt.about("Jobs of a log, the first to arrive; 0: all.")] = 0
    speeds: Annotated[
        str,
        opt.about("File of measured times by kind, from which a queue is sampled, as in TapFinger."),
    ] = ""
    oracle: Annotated[
        bool, opt.about("Give planners each job's true speed, which no scheduler knows: an upper bound.")
    ] = False
    several: Annotated[bool, opt.about("Let tapfinger start several jobs of a cluster in one round.")] = False
    compare: Annotated[bool, opt.about("Compare with all other planners.")] = True
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
    options: QueueOptions,
    planner: str = planner_option("jobs"),
    out: OutOption = None,
    job_out: Annotated[
        Path | None, typer.Option(help="File that takes the queue, for `wirewise check --job`.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Schedule a queue of training jobs on clusters for the least mean completion time.

    All times are simulated. Planners know the speed of each kind of job, not of the individual job.
    """
    find_planner("jobs", planner)
    found_queue = _queue(queue, options)
    problem = JobProblem(found_queue, options.kept, options.window, options.oracle, options.patience)
    found = make_plan(JobPlan, planner, problem, seed=options.seed, several=options.several or None)
    if job_out is not None:
        write_queue(found_queue, job_out)
    others = [name for name in PLANNERS["jobs"] if name != planner] if options.compare else []
    compared = {planner: _figures(found, problem)}
    failed = []
    for name in others:
        try:
            compared[name] = _figures(make_plan(JobPlan, name, problem, seed=options.seed), problem)
        except PlanError as error:
            failed.append(f"{error}")
    record = {"plan": msgspec.to_builtins(found), "simulated": compared}
    print_plan(
        found, out, json, *_summary_lines(found, compared, (*found_queue.notes, *failed)), record=record
    )


def _queue(source: str, options: QueueOptions) -> JobQueue:
    _check_use(options)
    if options.log != "none":
        rooms = numbered_clusters([_room(text) for text in options.clusters])
        return read_queue_log(options.log, source, rooms, slot_s=options.slot, jobs=options.jobs or None)
    if source in _DRAWN and not Path(source).exists():
        clusters, rate = _DRAWN[source]
        if not options.speeds:
            return draw_queue(clusters, rate, seed=options.seed)
        drawn = draw_queue(
            clusters, rate, kinds=read_speeds(options.speeds, slot_s=options.slot), seed=options.seed
        )
        return msgspec.structs.replace(drawn, slot_s=options.slot)
    if options.speeds:
        raise InputError(
            f"got --speeds for {source}, whose jobs have their kinds; expected one of: {', '.join(_DRAWN)}"
        )
    if not Path(source).exists():
        raise InputError(f"{source}: no such file; expected one, or a queue to draw: {', '.join(_DRAWN)}")
    return read_queue(source)


def _check_use(options: QueueOptions) -> None:
    """Refuse options that nothing would use."""
    logged = options.log != "none"
    if logged and not options.clusters:
        raise InputError(
            "got --log without --clusters; expected the clusters that share its jobs, such as 64x256"
        )
    for name, given, used in (
        ("--clusters", bool(options.clusters), logged),
        ("--jobs", bool(options.jobs), logged),
        ("--slot", options.slot != QueueOptions().slot, logged or bool(options.speeds)),
        ("--speeds", bool(options.speeds), not logged),
    ):
        if given and not used:
            raise InputError(f"got {name} {'beside' if logged else 'without'} --log; leave it out")


def _room(text: str) -> tuple[int, int]:
    cpus, cross, gpus = text.partition("x")
    if not (cross and cpus.isdecimal() and gpus.isdecimal()):
        raise InputError(f"got a cluster {text!r}; expected processors x accelerators, such as 64x256")
    return int(cpus), int(gpus)


def _figures(plan: JobPlan, problem: JobProblem) -> dict[str, float]:
    ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    for one in plan.allotments:
        ends[one.job] = one.end
        starts.setdefault(one.job, one.start)
    taken = np.array([(ends[job.name] - job.arrival) * plan.slot_s for job in problem.queue.queue])
    return {
        "mean_completion_s": plan.mean_completion_s,
        "p99_completion_s": float(np.percentile(taken, 99)),
        "makespan_s": plan.predicted_s,
        "longest_wait_s": max(starts[job.name] - job.arrival for job in problem.queue.queue) * plan.slot_s,
    }


def _summary_lines(
    found: JobPlan, compared: dict[str, dict[str, float]], notes: Sequence[str]
) -> Iterator[Said]:
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
    for line in (*found.notes, *notes):
        yield f"Note: {line}."
    if others:
        ranked = sorted(compared.items(), key=lambda item: item[1]["mean_completion_s"])
        yield (
            ["planner", "mean s", "99 of 100 within s", "all done s", "longest wait s"],
            [[name, *(f"{value:.4g}" for value in one.values())] for name, one in ranked],
        )
