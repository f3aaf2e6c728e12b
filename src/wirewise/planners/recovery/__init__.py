"""Planners of recovery: sources of lost state, message logs and checkpoint intervals."""

from wirewise.planners.faces import Planner, Problems, face
from wirewise.planners.recovery.problem import (
    RecoveryProblem,
    problem_of,
    problem_of_modules,
    trace_of_pipeline,
)
from wirewise.planners.recovery.swift import STRATEGIES, plan
from wirewise.trace.recovery import RecoveryTrace
from wirewise.trace.stages import StageTrace

__all__ = [
    "PLANNERS",
    "STRATEGIES",
    "RecoveryProblem",
    "plan",
    "problem_of",
    "problem_of_modules",
    "swift",
    "trace_of_pipeline",
]

_PROBLEMS = Problems(
    "the recovery of a job",
    RecoveryProblem,
    {RecoveryTrace: problem_of, StageTrace: problem_of_modules},
)

PLANNERS: dict[str, Planner] = {"swift": face(plan, "swift", _PROBLEMS)}
"""Planners by name."""

# Stands before the module of the same name.
swift = PLANNERS["swift"]
