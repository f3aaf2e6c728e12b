"""Cached remote features of each machine, chosen so that mini-batches fetch few rows."""

from functools import partial

from wirewise.planners.cache.balance import BalancedCaches, balance_caches
from wirewise.planners.cache.inclusion import Drawers, inclusion, one_hop, seed_probability
from wirewise.planners.cache.planner import Share, budgets_of, plan, plans
from wirewise.planners.cache.policies import (
    POLICIES,
    CacheProblem,
    access_counts,
    count_misses,
    select_cached,
)
from wirewise.planners.faces import Planner, Problems, face

__all__ = [
    "PLANNERS",
    "POLICIES",
    "BalancedCaches",
    "CacheProblem",
    "Drawers",
    "Share",
    "access_counts",
    "balance_caches",
    "budgets_of",
    "count_misses",
    "inclusion",
    "one_hop",
    "plans",
    "seed_probability",
    "select_cached",
    "vip",
]

PLANNERS: dict[str, Planner] = {
    # Which rows batches need depends on no link; `row_s` says what a row takes where balanced links are asked for.
    name: face(partial(plan, name), name, Problems("batches drawn from a partitioned graph", CacheProblem))
    for name in POLICIES
}
"""Planners by name."""

vip = PLANNERS["vip"]
