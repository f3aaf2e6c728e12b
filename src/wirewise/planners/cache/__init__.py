"""Which features of other machines' nodes a machine keeps, so that mini-batches fetch few rows."""

from wirewise.planners.cache.inclusion import Drawers, inclusion, one_hop, seed_probability
from wirewise.planners.cache.policies import POLICIES, CacheProblem, keep
from wirewise.planners.cache.volume import access_counts, missed, seed_batches

__all__ = [
    "POLICIES",
    "CacheProblem",
    "Drawers",
    "access_counts",
    "inclusion",
    "keep",
    "missed",
    "one_hop",
    "seed_batches",
    "seed_probability",
]
