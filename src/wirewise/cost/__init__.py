"""Models of links, codecs and exchanges, and their fits to measured times."""

from wirewise.cost.closed_forms import CLOSED_FORMS, ClosedForm, Counts
from wirewise.cost.codec import CodecCost, fit_codec
from wirewise.cost.collectives import LowerBound, best_segments, closed_form, count, lower_bound
from wirewise.cost.exchange import (
    EpochModel,
    ExchangeCosts,
    LinkTable,
    break_even_bytes_per_s,
    exposed_s,
    ring_rounds,
    speedup_bound,
)
from wirewise.cost.interfaces import Links
from wirewise.cost.interference import fit_interference
from wirewise.cost.link import LinkCost, OnlineLinkCost, OnlineLinkTable, fit_link
from wirewise.cost.traces import fit_links, interference_of
from wirewise.cost.transfers import TransferCost, TransferSample, fit_transfers

__all__ = [
    "CLOSED_FORMS",
    "ClosedForm",
    "CodecCost",
    "Counts",
    "EpochModel",
    "ExchangeCosts",
    "LinkCost",
    "LinkTable",
    "Links",
    "LowerBound",
    "OnlineLinkCost",
    "OnlineLinkTable",
    "TransferCost",
    "TransferSample",
    "best_segments",
    "break_even_bytes_per_s",
    "closed_form",
    "count",
    "exposed_s",
    "fit_codec",
    "fit_interference",
    "fit_link",
    "fit_links",
    "fit_transfers",
    "interference_of",
    "lower_bound",
    "ring_rounds",
    "speedup_bound",
]
