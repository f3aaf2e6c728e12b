"""Models of links, codecs and exchanges, and their fits to measured times."""

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names

if TYPE_CHECKING:
    from wirewise.cost.codec import CodecCost, fit_codec
    from wirewise.cost.collectives import (
        CLOSED_FORMS,
        ClosedForm,
        Counts,
        LowerBound,
        closed_form,
        count,
        lower_bound,
    )
    from wirewise.cost.exchange import (
        ExchangeCosts,
        break_even_bytes_per_s,
        exposed_s,
        speedup_bound,
    )
    from wirewise.cost.gradients import V100, GradientCosts, load_costs
    from wirewise.cost.interference import fit_interference
    from wirewise.cost.link import LinkCost, LinkEstimator, PairEstimator, fit_link
    from wirewise.cost.links import TCP_PAYLOAD, Links
    from wirewise.cost.pairs import PairCosts
    from wirewise.cost.traces import interference_of
    from wirewise.cost.transfers import TransferCost, TransferSample, fit_transfers

__all__ = [
    "CLOSED_FORMS",
    "TCP_PAYLOAD",
    "V100",
    "ClosedForm",
    "CodecCost",
    "Counts",
    "ExchangeCosts",
    "GradientCosts",
    "LinkCost",
    "LinkEstimator",
    "Links",
    "LowerBound",
    "PairCosts",
    "PairEstimator",
    "TransferCost",
    "TransferSample",
    "break_even_bytes_per_s",
    "closed_form",
    "count",
    "exposed_s",
    "fit_codec",
    "fit_interference",
    "fit_link",
    "fit_transfers",
    "interference_of",
    "load_costs",
    "lower_bound",
    "speedup_bound",
]

# A check of a program needs one module of them, and no compiler: 0.5 s of processor time, 0.7 with all.
__getattr__ = lazy_names(
    __name__,
    {
        "codec": (
            "CodecCost",
            "fit_codec",
        ),
        "collectives": (
            "CLOSED_FORMS",
            "ClosedForm",
            "Counts",
            "LowerBound",
            "closed_form",
            "count",
            "lower_bound",
        ),
        "exchange": (
            "ExchangeCosts",
            "break_even_bytes_per_s",
            "exposed_s",
            "speedup_bound",
        ),
        "gradients": (
            "V100",
            "GradientCosts",
            "load_costs",
        ),
        "interference": ("fit_interference",),
        "link": (
            "LinkCost",
            "LinkEstimator",
            "PairEstimator",
            "fit_link",
        ),
        "links": (
            "TCP_PAYLOAD",
            "Links",
        ),
        "pairs": ("PairCosts",),
        "traces": ("interference_of",),
        "transfers": (
            "TransferCost",
            "TransferSample",
            "fit_transfers",
        ),
    },
)
