"""Deployment of a model on unequal devices: op groups, their devices, batch rows, and gradient exchange."""

from functools import partial

from wirewise.planners.faces import Planner, Problems, face
from wirewise.planners.placement.tag.baselines import METHODS, deploy
from wirewise.planners.placement.tag.factors import FactorProblem, duplicated_ops
from wirewise.planners.placement.tag.operators import modules_of
from wirewise.planners.placement.tag.planner import plan_tag
from wirewise.planners.placement.tag.problem import Action, DeploymentProblem, problem_of
from wirewise.planners.placement.tag.search import StrategyTimes, descend, tree_search
from wirewise.trace.operator_graph import OperatorGraph
from wirewise.trace.stages import StageTrace

__all__ = [
    "METHODS",
    "PLANNERS",
    "Action",
    "DeploymentProblem",
    "FactorProblem",
    "StrategyTimes",
    "deploy",
    "descend",
    "duplicated_ops",
    "modules_of",
    "plan_tag",
    "problem_of",
    "tree_search",
]

_PROBLEMS = Problems(
    "a model on unequal devices", DeploymentProblem, {StageTrace: problem_of, OperatorGraph: problem_of}
)

PLANNERS: dict[str, Planner] = {"tag": face(plan_tag, "tag", _PROBLEMS)} | {
    method: face(partial(deploy, method=method), method, _PROBLEMS) for method in METHODS
}
"""Planners by name."""
