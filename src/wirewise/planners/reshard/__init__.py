"""Planners for moving tensors between layouts on meshes of ranks."""

from functools import partial

from wirewise.planners.faces import Planner, Problems, face
from wirewise.planners.reshard.bound import bound
from wirewise.planners.reshard.cross_mesh import plan
from wirewise.planners.reshard.order import ORDERS
from wirewise.planners.reshard.problem import ReshardProblem, alike_links, problem_of
from wirewise.plans.sharding import LaidOutTensor

__all__ = ["ORDERS", "PLANNERS", "ReshardProblem", "alike_links", "bound", "cross_mesh", "problem_of"]

_PROBLEMS = Problems(
    "tensors on meshes", ReshardProblem, {LaidOutTensor: problem_of, tuple: problem_of, list: problem_of}
)

PLANNERS: dict[str, Planner] = {"cross-mesh": face(partial(plan), "cross-mesh", _PROBLEMS)}
"""Planners by name."""

# It stands before the module of the same name.
cross_mesh = PLANNERS["cross-mesh"]
