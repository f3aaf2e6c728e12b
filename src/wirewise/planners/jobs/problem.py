"""Queue of jobs on shared clusters, and plans made by rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError, PlanError
from wirewise.planners.jobs.rules import REALLOTTING, RULES, Knowledge, expected_queue, knowledge, run_rule
from wirewise.plans.jobs import JobAllotment, JobPlan
from wirewise.sim.jobs.engine import LOGGED, QueueState, new_state
from wirewise.trace.queues import JobQueue, QueueArrays

__all__ = [
    "JobProblem",
    "last_slot",
    "mean_slots",
    "plan_jobs",
    "plan_of",
    "problem_of",
    "simulate_rule",
    "tune",
]

_ROUNDS = 2
"""Times that each kind's two numbers are chosen with those of the others held."""


@dataclass(frozen=True)
class JobProblem:
    """Queue of jobs, and the cost of stopping, moving and resizing them.

    Raises:
        InputError: A figure is out of range.
    """

    queue: JobQueue
    kept: float = 0.5
    """Fraction of a slot's progress that a job makes if it was resized in the slot."""
    window: int = 10
    """Number of oldest jobs that a cluster chooses from."""
    oracle: bool = False
    """Whether planners know each job's true pace; unrealistic, as a bound for comparisons."""
    patience: int = 0
    """Slots of waiting after which a job takes precedence over all later arrivals; 0 for never."""
    arrays: QueueArrays = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.kept <= 1 or self.window < 1:
            raise InputError(
                f"got kept {self.kept} and a window of {self.window}; expected a share of 0 to 1 and at least one job"
            )
        if self.patience < 0:
            raise InputError(f"got a patience of {self.patience} slots; expected at least 0")
        object.__setattr__(self, "arrays", self.queue.arrays())

    @property
    def believed(self) -> QueueArrays:
        """Queue with the job speeds that planners expect."""
        return self.arrays if self.oracle else expected_queue(self.arrays)

    def at_ordinary_pace(self) -> JobProblem:
        """Queue whose jobs progress at the speed of their kind, as schedulers expect."""
        jobs = tuple(msgspec.structs.replace(job, pace=1.0) for job in self.queue.queue)
        return JobProblem(
            msgspec.structs.replace(self.queue, queue=jobs), self.kept, self.window, patience=self.patience
        )

    def knowledge(self) -> Knowledge:
        """Scheduler's knowledge of these jobs, with untuned amounts."""
        return knowledge(expected_queue(self.arrays), self.window, self.patience)


def problem_of(
    queue: JobQueue,
    links: None = None,
    *,
    kept: float = 0.5,
    window: int = 10,
    oracle: bool = False,
    patience: int = 0,
) -> JobProblem:
    """Build the problem of a queue.

    Args:
        queue: Jobs and clusters.
        links: Unused, must be empty: a job runs within a cluster.
        kept: Fraction of a slot's progress kept by a job that was resized in it.
        window: Number of oldest jobs that a cluster chooses from.
        oracle: Whether planners know each job's own speed: an upper bound for comparisons.
        patience: Slots after its arrival from which a job precedes all later arrivals. Defaults to 0, for never.

    Raises:
        InputError: Links are given, or a figure is out of range.
    """
    if links is not None:
        raise InputError(
            f"got a {type(links).__name__} beside a queue of jobs, each of which runs within a cluster"
        )
    return JobProblem(queue, kept, window, oracle, patience)


def plan_jobs(problem: JobProblem, rule: str, *, seed: int = 0) -> JobPlan:
    """Schedule jobs by a rule until all are done: cluster, time and resources of each.

    Objective: the mean time from arrival to end. Variables: cluster, CPUs, accelerators and start of each job, for
    some rules anew in each slot. Constraints: cluster capacity, allowed clusters, minimum resources, arrivals. The
    rules are greedy; a slot takes time linear in the waiting and running jobs, times the units of a cluster for rules
    that allocate unit by unit. Rules know the progress of kinds, and a job's own speed only with `oracle`.
    `threshold` and `tiresias` give each kind the amount that `tune` finds best for this queue.

    Y. Li, T. Zeng, X. Zhang, J. Duan, C. Wu: TapFinger, INFOCOM 2023, for the queues and the rules compared with.

    Args:
        problem: Jobs and clusters.
        rule: Name of the rule, one of `RULES`.
        seed: Seed of randomised rules.

    Raises:
        PlanError: A job does not finish.
    """
    known = problem.knowledge()
    if rule in ("threshold", "tiresias"):
        known = tune([problem], rule)
    return plan_of(problem, simulate_rule(problem, rule, known, seed), rule, seed)


def plan_of(
    problem: JobProblem, state: QueueState, planner: str, seed: int, notes: tuple[str, ...] = ()
) -> JobPlan:
    """Build the plan of a queue whose jobs are all done.

    Args:
        problem: Jobs and clusters.
        state: State after the last slot, with its complete log.
        planner: Name of the planner.
        seed: Seed of the planner.
        notes: Notes of the planner.
    """
    log = state.log[: state.counts[LOGGED]]
    log = log[np.lexsort((log[:, 0], log[:, 4]))]
    names = [job.name for job in problem.queue.queue]
    slot_s = problem.queue.slot_s
    return JobPlan(
        world_size=len(problem.queue.clusters),
        planner=planner,
        seed=seed,
        allotments=tuple(
            JobAllotment(job=names[job], cluster=cluster, cpus=cpus, gpus=gpus, start=start, end=end)
            for job, cluster, cpus, gpus, start, end in log.tolist()
        ),
        clusters=tuple(cluster.name for cluster in problem.queue.clusters),
        slot_s=slot_s,
        kept=problem.kept,
        mean_completion_s=float((state.finish - problem.arrays.arrival).mean()) * slot_s,
        predicted_s=float(state.finish.max()) * slot_s,
        notes=notes,
    )


def simulate_rule(problem: JobProblem, rule: str, knowledge: Knowledge, seed: int = 0) -> QueueState:
    """Simulate a rule until all jobs are done; the state's log is complete.

    Raises:
        PlanError: A job does not finish.
    """
    queue, believed = problem.arrays, problem.believed
    last = last_slot(problem, knowledge)
    entries = len(queue.arrival) * (1 if rule not in REALLOTTING else 8)
    while True:
        state = new_state(queue, entries)
        if not run_rule(RULES.index(rule), queue, believed, state, knowledge, problem.kept, last, seed):
            waiting = int((state.finish < 0).sum())
            raise PlanError(
                f"under {rule!r} {waiting} jobs are not done in slot {last}; choose another planner"
            )
        if state.counts[LOGGED] <= entries:
            return state
        entries = int(state.counts[LOGGED])


def last_slot(problem: JobProblem, knowledge: Knowledge) -> int:
    """Time limit of simulations: twice the slots of all jobs run one after another with minimum resources."""
    queue = problem.arrays
    slowest = knowledge.slots[np.arange(len(queue.least)), queue.least[:, 0], queue.least[:, 1]]
    slots = (slowest[queue.kind] / queue.pace + 1).sum() / min(1.0, problem.kept + 0.1)
    return int(queue.arrival[-1] + 2 * slots)


def mean_slots(problems: Sequence[JobProblem], rule: str, knowledge: Knowledge) -> float:
    """Mean number of slots from arrival to end, averaged over queues."""
    return float(
        np.mean(
            [(simulate_rule(one, rule, knowledge).finish - one.arrays.arrival).mean() for one in problems]
        )
    )


def tune(problems: Sequence[JobProblem], rule: str = "threshold") -> Knowledge:
    """Tune the amount of each kind, and the free amount required to start it, for the least mean time on these queues.

    Coordinate search over kinds, twice, on a grid: all amounts faster than any smaller one, and floors of the least,
    half and whole amount.

    Args:
        problems: Queues of the same kinds and clusters.
        rule: "threshold" or "tiresias".
    """
    known = problems[0].knowledge()
    best_s = mean_slots(problems, rule, known)
    for kind in [kind for _ in range(_ROUNDS) for kind in range(len(known.due))]:
        for due in np.unique(known.best[kind].reshape(-1, 2), axis=0):
            if (
                known.slots[kind, due[0], due[1]] == known.slots.max()
                or (due < problems[0].arrays.least[kind]).any()
            ):
                continue
            for share in (0.0, 0.5, 1.0) if rule == "threshold" else (0.0,):
                other = _with(known, kind, due, share, problems[0].arrays.least[kind])
                if (other.due == known.due).all() and (other.floor == known.floor).all():
                    continue
                took = mean_slots(problems, rule, other)
                if took < best_s:
                    best_s, known = took, other
    return known


def _with(
    knowledge: Knowledge, kind: int, due: NDArray[np.int64], share: float, least: NDArray[np.int64]
) -> Knowledge:
    dues, floors = knowledge.due.copy(), knowledge.floor.copy()
    dues[kind] = due
    floors[kind] = np.maximum(least, np.ceil(share * due).astype(np.int64))
    return knowledge._replace(due=dues, floor=floors)
