"""Which features of other machines' nodes a machine keeps, so that mini-batches fetch few rows."""

from functools import partial

from wirewise.planners.cache.balance import BalancedCaches, balanced
from wirewise.planners.cache.inclusion import Drawers, inclusion, one_hop, seed_probability
from wirewise.planners.cache.planner import Share, budgets_of, plan, plans
from wirewise.planners.cache.policies import POLICIES, CacheProblem, access_counts, keep, missed
from wirewise.planners.faces import Planner, Problems, face

__all__ = [
    "PLANNERS",
    "POLICIES",
    "BalancedCaches",
    "CacheProblem",
    "Drawers",
    "Share",
    "access_counts",
    "balanced",
    "budgets_of",
    "inclusion",
    "keep",
    "missed",
    "one_hop",
    "plans",
    "seed_probability",
    "vip",
]

PLANNERS: dict[str, Planner] = {
    # Which rows batches need depends on no link; `row_s` says what a row takes where balanced links are asked for.
    name: face(partial(plan, name), name, Problems("batches drawn from a partitioned graph", CacheProblem))
    for name in POLICIES
}
"""Planners by name."""

vip = PLANNERS["vip"]
