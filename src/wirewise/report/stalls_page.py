"""Stalls in words: cost of each part of a step, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.cost.stalls import Amount
from wirewise.report.figures import seconds
from wirewise.results import Comparison, Variant

__all__ = ["stalls_comparison"]

_COLOURS = {
    "compute": "p-central",
    "interconnect": "p-wire",
    "network": "p-wire",
    "prep": "p-pack",
    "fetch": "p-pack",
    "total": "c0",
}


def stalls_comparison(
    kind: str, sentence: str, rows: Sequence[tuple[str, Amount]], notes: Sequence[str]
) -> Comparison:
    """Comparison of the parts of a step, for terminals and pages.

    Args:
        kind: Kind of measurement, in a few words.
        sentence: Main finding in one sentence.
        rows: Name and seconds of each part of a step; the last one is the total.
        notes: Caveats, and agreement with a replay.
    """
    total_s = rows[-1][1].mean_s
    return Comparison(
        kind=f"wirewise stalls \N{MIDDLE DOT} {kind}",
        sentence=sentence,
        title="Where a step stalls",
        lead="Measured by runs that differ in one thing; the parts add up to the step.",
        goal=total_s,
        what="part",
        variants={name: _variant(name, amount, total_s) for name, amount in rows},
        notes=tuple(notes),
    )


def _variant(name: str, amount: Amount, total_s: float) -> Variant:
    share = f"{100 * amount.mean_s / total_s:.1f} %" if total_s > 0 else ""
    mean = seconds(amount.mean_s)
    return Variant(
        length=amount.mean_s,
        words=f"{mean} ({share})" if share else mean,
        colour=_COLOURS.get(name, "p-other"),
        cells={
            "a step": mean,
            "95 % interval": " to ".join(map(seconds, amount.ci95_s)),
            "of the step": share,
        },
    )
