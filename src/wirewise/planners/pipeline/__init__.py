"""Pipeline stages of a model, and their timetables."""

from functools import partial

from wirewise.planners.faces import Planner, Problems, face
from wirewise.planners.pipeline.planner import METHODS, plan
from wirewise.planners.pipeline.problem import PipelineProblem, problem_of
from wirewise.planners.pipeline.two_bw import search
from wirewise.trace.stages import StageTrace

__all__ = [
    "METHODS",
    "PLANNERS",
    "PipelineProblem",
    "eager",
    "plan",
    "problem_of",
    "search",
    "two_bw",
]

_PROBLEMS = Problems("a model as a list of modules", PipelineProblem, {StageTrace: problem_of})

PLANNERS: dict[str, Planner] = {name: face(partial(plan, method=name), name, _PROBLEMS) for name in METHODS}
"""Planners by name."""

# The first stands before the module of the same name.
two_bw, eager = (PLANNERS[name] for name in ("two-bw", "eager"))
