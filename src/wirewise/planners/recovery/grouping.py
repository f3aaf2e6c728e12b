"""Selective logging: which messages to log, to limit storage and recomputation. Exact.

Neighbouring stages form groups. Messages between groups are logged by their senders; if a stage of a group is lost,
the group rolls back to the checkpoint and recomputes from logged messages, while all others wait. Smaller groups
recompute less and log more (SWIFT, TPDS 2024, section on selective logging; its greedy merging is not exact).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.plans.recovery import LogTier

__all__ = ["GroupChoice", "StageGrouping", "fronts"]

_SAME = 1e-12


class GroupChoice(NamedTuple):
    """Group of adjacent stages, and the storage of the logs that it reads."""

    first: int
    """Index of its first stage."""
    end: int
    """Index after its last stage."""
    tier: LogTier
    price_bytes: float
    """Bytes per step of the logs that it reads, times the price of their tier."""
    cost_s: float
    """Seconds to recompute a step, times the probability of a recovery."""


class StageGrouping(NamedTuple):
    """Pareto-optimal grouping of all stages, by price and cost."""

    price_bytes: float
    cost_s: float
    groups: tuple[GroupChoice, ...]


class _Labels(NamedTuple):
    """Groupings of the first stages, by rising price and falling cost, [n] each."""

    price: NDArray[np.float64]
    cost: NDArray[np.float64]
    choice: NDArray[np.int64]
    """Index of the last group among those that end here."""
    parent: NDArray[np.int64]
    """Index of the label before that group, where the group begins."""


def fronts(
    stages: int, choices: Callable[[int, int], Sequence[GroupChoice]], budget_bytes: float = np.inf
) -> list[StageGrouping]:
    """Pareto front of price and cost over all groupings within a storage budget, by ascending price.

    Minimizes both sums over groups, subject to the budget of the price. Dynamic programming over prefixes: the label
    of a grouping of the first j stages is (price, cost), and dominated labels are dropped, because any continuation
    adds the same to both: O(stages^2 * length of the front). Costs that differ by rounding count as one.

    Args:
        stages: Number of stages.
        choices: Options to group the stages of a range; empty if not allowed.
        budget_bytes: Maximum price of a grouping, in bytes.

    Returns:
        The front; empty if no grouping is allowed.
    """
    ending: list[list[GroupChoice]] = [[]]
    found = [_Labels(np.zeros(1), np.zeros(1), np.full(1, -1), np.full(1, -1))]
    for end in range(1, stages + 1):
        own = [choice for first in range(end) for choice in choices(first, end)]
        ending.append(own)
        found.append(_best(_longer(own, found), budget_bytes))
    return [
        StageGrouping(
            float(found[-1].price[label]), float(found[-1].cost[label]), _groups(label, ending, found)
        )
        for label in range(len(found[-1].price))
    ]


def _longer(ending: Sequence[GroupChoice], found: Sequence[_Labels]) -> Iterator[_Labels]:
    """Labels before each group with the group behind them."""
    for number, choice in enumerate(ending):
        before = found[choice.first]
        count = len(before.price)
        yield _Labels(
            before.price + choice.price_bytes,
            before.cost + choice.cost_s,
            np.full(count, number),
            np.arange(count),
        )


def _best(parts: Iterator[_Labels], budget_bytes: float) -> _Labels:
    """Labels that no other one beats."""
    labels = list(parts)
    if not labels:
        return _Labels(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
    price, cost = (np.concatenate([one[field] for one in labels]) for field in (0, 1))
    choice, parent = (np.concatenate([one[field] for one in labels]) for field in (2, 3))
    order = np.lexsort((cost, price))
    order = order[price[order] <= budget_bytes]
    # The least cost among all that are no dearer; the first label has none before it.
    least = np.minimum.accumulate(np.concatenate([[np.inf], cost[order]]))[:-1]
    kept = order[cost[order] < least * (1.0 - _SAME)]
    return _Labels(price[kept], cost[kept], choice[kept], parent[kept])


def _groups(
    label: int, ending: Sequence[Sequence[GroupChoice]], found: Sequence[_Labels]
) -> tuple[GroupChoice, ...]:
    groups, end = list[GroupChoice](), len(found) - 1
    while end:
        choice = ending[end][int(found[end].choice[label])]
        label, end = int(found[end].parent[label]), choice.first
        groups.append(choice)
    return tuple(reversed(groups))
