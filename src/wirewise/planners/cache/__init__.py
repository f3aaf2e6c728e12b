"""Which features of other machines' nodes a machine keeps, so that mini-batches fetch few rows."""

from wirewise.planners.cache.balance import BalancedCaches, balanced
from wirewise.planners.cache.growth import CacheChange, GrowingCache
from wirewise.planners.cache.inclusion import Drawers, inclusion, one_hop, seed_probability
from wirewise.planners.cache.lookahead import best_split, fetched_rows, remote_rows
from wirewise.planners.cache.planner import Share, budgets_of, plan, plans, share_budget
from wirewise.planners.cache.policies import POLICIES, CacheProblem, keep
from wirewise.planners.cache.volume import access_counts, missed

__all__ = [
    "POLICIES",
    "BalancedCaches",
    "CacheChange",
    "CacheProblem",
    "Drawers",
    "GrowingCache",
    "Share",
    "access_counts",
    "balanced",
    "best_split",
    "budgets_of",
    "fetched_rows",
    "inclusion",
    "keep",
    "missed",
    "one_hop",
    "plan",
    "plans",
    "remote_rows",
    "seed_probability",
    "share_budget",
]
