"""Frozen records of decisions, one file a family; every one is checked, simulated, carried out and drawn."""

from wirewise.plans.base import Plan, TopologyLike
from wirewise.plans.bitwidth import BITS, BitWidthPlan, ChannelBits, row_bytes
from wirewise.plans.files import PLANS, load, loads, save

__all__ = [
    "BITS",
    "PLANS",
    "BitWidthPlan",
    "ChannelBits",
    "Plan",
    "TopologyLike",
    "load",
    "loads",
    "row_bytes",
    "save",
]
