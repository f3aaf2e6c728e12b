"""Planners of job queues: which cluster runs a job, when, and with which CPUs and accelerators."""

from functools import partial

from wirewise.planners.faces import Planner, Problems, face
from wirewise.planners.jobs.problem import JobProblem, mean_slots, plan_jobs, problem_of, tune
from wirewise.planners.jobs.rules import REALLOTTING, RULES
from wirewise.planners.jobs.tapfinger import plan_tapfinger
from wirewise.trace.queues import JobQueue

__all__ = [
    "PLANNERS",
    "REALLOTTING",
    "RULES",
    "JobProblem",
    "mean_slots",
    "plan_jobs",
    "plan_tapfinger",
    "problem_of",
    "tune",
]

_PROBLEMS = Problems("a queue of jobs", JobProblem, {JobQueue: problem_of})

PLANNERS: dict[str, Planner] = {
    rule: face(partial(plan_jobs, rule=rule), rule, _PROBLEMS)
    for rule in sorted(RULES, key=lambda rule: (rule != "heft", RULES.index(rule)))
} | {"tapfinger": face(plan_tapfinger, "tapfinger", _PROBLEMS)}
"""Planners by name."""
