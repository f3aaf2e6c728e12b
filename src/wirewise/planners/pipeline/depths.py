"""Number of microbatches in flight at each position: the fewest that keep an update fast, by simulation.

More microbatches in flight hide messages but cost memory. All at once is slower again, because backward passes then
start late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = ["choose_depths"]

_SCALES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Microbatches ahead for each position behind: 1 is 1F1B, 2 is eager 1F1B."""
_MOST_TRIED = 64
"""Depths that are simulated, after which those found are no longer lowered."""
_SAME = 1.0 + 1e-9


def choose_depths(simulate: Callable[[tuple[int, ...]], float], maximum: Sequence[int]) -> tuple[int, ...]:
    """Find the smallest depths with which an update is as fast as with any depths tried.

    Depths grow evenly towards the first position at several rates; the fastest of them are then lowered one by one
    while the update takes no longer, 64 simulations in all.

    Args:
        simulate: Update time with these depths, in seconds.
        maximum: Maximum number of microbatches that fit into each position's memory, at least 1.
    """
    positions, known = len(maximum), dict[tuple[int, ...], float]()

    def seconds(depths: tuple[int, ...]) -> float:
        if depths not in known:
            known[depths] = simulate(depths)
        return known[depths]

    def ahead(scale: float) -> tuple[int, ...]:
        found, limit = list[int](), maximum[0]
        for position in range(positions):
            limit = min(limit, maximum[position])
            found.append(min(limit, 1 + math.ceil(scale * (positions - 1 - position))))
        return tuple(found)

    best = min(dict.fromkeys(map(ahead, _SCALES)), key=lambda depths: (seconds(depths), sum(depths)))
    enough, lowered = seconds(best) * _SAME, True
    while lowered:
        lowered = False
        for position in range(positions):
            fewer = (*best[:position], best[position] - 1, *best[position + 1 :])
            behind = best[position + 1] if position + 1 < positions else 1
            if fewer[position] >= behind and len(known) < _MOST_TRIED and seconds(fewer) <= enough:
                best, lowered = fewer, True
    return best
