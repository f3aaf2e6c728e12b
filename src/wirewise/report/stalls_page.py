"""One HTML file about stalls: what each part of a step costs, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.cost.stalls import Amount
from wirewise.report import shell
from wirewise.report.figures import seconds
from wirewise.report.replay_bars import Bar, bars_chart

__all__ = ["stalls_html"]

_COLOURS = {
    "compute": "p-central",
    "interconnect": "p-wire",
    "network": "p-wire",
    "prep": "p-pack",
    "fetch": "p-pack",
    "total": "p-plan",
}


def stalls_html(kind: str, sentence: str, rows: Sequence[tuple[str, Amount]], notes: Sequence[str]) -> str:
    """The page as text.

    Args:
        kind: What was measured, in a few words.
        sentence: The main finding.
        rows: Name and seconds of each part of a step; the last one is the total.
        notes: What a reader should know, and how a replay agrees.
    """
    total = rows[-1][1].mean_s
    bars = [
        Bar(name, max(amount.mean_s, 0.0), _share(amount.mean_s, total), _COLOURS.get(name, "p-other"))
        for name, amount in rows
    ]
    table = [
        (name, seconds(amount.mean_s), " to ".join(map(seconds, amount.ci95_s)), _share(amount.mean_s, total))
        for name, amount in rows
    ]
    told = [(note,) for note in notes]
    return shell.page(
        "Stalls",
        [
            shell.head(f"wirewise stalls \N{MIDDLE DOT} {kind}", sentence),
            shell.section(
                "Where a step stalls",
                "Measured by runs that differ in one thing; the parts add up to the step.",
                bars_chart(bars, "Parts of a step", total)
                + shell.table(("part", "a step", "95 % interval", "of the step"), table),
            ),
            shell.section("Notes", "", shell.table(("of these figures",), told)),
        ],
    )


def _share(part_s: float, total_s: float) -> str:
    return f"{100 * part_s / total_s:.1f} %" if total_s > 0 else ""
