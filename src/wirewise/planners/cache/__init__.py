"""Which features of other machines' nodes a machine keeps, so that mini-batches fetch few rows."""

from wirewise.planners.cache.balance import BalancedCaches, balanced
from wirewise.planners.cache.growth import CacheChange, GrowingCache
from wirewise.planners.cache.inclusion import Drawers, inclusion, one_hop, seed_probability
from wirewise.planners.cache.planner import Share, budgets_of, plan, plans
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
    "budgets_of",
    "inclusion",
    "keep",
    "missed",
    "one_hop",
    "plan",
    "plans",
    "seed_probability",
]
