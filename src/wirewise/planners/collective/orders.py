"""Orders of ranks in which neighbours are near each other, for algorithms that only know numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["near_order"]

_MOST_VISITS = 20_000


def near_order(distance: NDArray[np.float64], group: Sequence[int]) -> tuple[int, ...]:
    """Places of the group in the order of a ring whose longest hop is as short as a bounded search finds.

    Args:
        distance: Seconds of a message from rank to rank, [ranks, ranks]; infinite: no way.
        group: Ranks of the group.

    Returns:
        A permutation of the group's places, 0 first; ascending where no ring was found.
    """
    places = range(len(group))
    own = distance[np.ix_(group, group)]
    levels = np.unique(own[np.isfinite(own) & ~np.eye(len(group), dtype=np.bool_)])
    low, high, best = 0, len(levels) - 1, tuple(places)
    while low <= high:
        middle = (low + high) // 2
        found = _ring(own, float(levels[middle]))
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle - 1
    return best


def _ring(own: NDArray[np.float64], longest_s: float) -> tuple[int, ...] | None:
    """A ring over all places without longer hops: depth first, the place with the fewest ways on first."""
    count = len(own)
    onward = [[t for t in range(count) if t != s and own[s, t] <= longest_s] for s in range(count)]
    path, used, visits = [0], {0}, 0
    options = [_by_freedom(onward, 0, used)]
    while options and visits < _MOST_VISITS:
        visits += 1
        if len(path) == count and 0 in onward[path[-1]]:
            return tuple(path)
        if options[-1]:
            here = options[-1].pop()
            path.append(here)
            used.add(here)
            options.append(_by_freedom(onward, here, used))
        else:
            options.pop()
            used.discard(path.pop())
    return None


def _by_freedom(onward: Sequence[Sequence[int]], here: int, used: set[int]) -> list[int]:
    """Places that can follow, the last one first: the one with the fewest ways on, then the lowest."""
    free = [t for t in onward[here] if t not in used]
    return sorted(free, key=lambda t: (-sum(n not in used for n in onward[t]), -t))
