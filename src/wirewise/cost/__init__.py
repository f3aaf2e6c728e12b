"""Models of links, codecs and exchanges, and their fits to measured times."""

from wirewise.cost.codec import CodecCost, fit_codec
from wirewise.cost.exchange import (
    EpochModel,
    ExchangeCosts,
    LinkTable,
    break_even_bytes_per_s,
    exposed_s,
    ring_rounds,
    speedup_bound,
)
from wirewise.cost.link import LinkCost, OnlineLinkCost, OnlineLinkTable, fit_link

__all__ = [
    "CodecCost",
    "EpochModel",
    "ExchangeCosts",
    "LinkCost",
    "LinkTable",
    "OnlineLinkCost",
    "OnlineLinkTable",
    "break_even_bytes_per_s",
    "exposed_s",
    "fit_codec",
    "fit_link",
    "ring_rounds",
    "speedup_bound",
]
