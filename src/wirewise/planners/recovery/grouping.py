"""Selective logging: which messages are logged, so that little is stored and little is recomputed. Exact.

Neighbouring stages form groups. Messages between groups are logged by their senders; if a stage of a group is lost, the
group goes back to the checkpoint and computes again from what it reads in logs, while all others wait. Smaller groups
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
    """A group of neighbouring stages, and where the logs lie that it reads."""

    first: int
    """Number of its first stage."""
    end: int
    """Number of the stage behind its last."""
    tier: LogTier
    price_bytes: float
    """Bytes a step of the logs that it reads, times the price of their tier."""
    cost_s: float
    """Seconds in which it recomputes a step, times the probability that it has to."""


class StageGrouping(NamedTuple):
    """Groups of all stages that no other grouping beats in both price and cost."""

    price_bytes: float
    cost_s: float
    groups: tuple[GroupChoice, ...]


class _Labels(NamedTuple):
    """Groupings of the first stages, by rising price and falling cost, [n] each."""

    price: NDArray[np.float64]
    cost: NDArray[np.float64]
    choice: NDArray[np.int64]
    """Number of the last group among those that end here."""
    parent: NDArray[np.int64]
    """Number of the label before that group, where the group begins."""


def fronts(
    stages: int, choices: Callable[[int, int], Sequence[GroupChoice]], budget_bytes: float = np.inf
) -> list[StageGrouping]:
    """All groupings within a budget of storage that none beats in both price and cost, by rising price.

    Minimizes both sums over groups, subject to the budget of the price. Dynamic programming over prefixes: the label of
    a grouping of the first j stages is (price, cost), and labels that another one beats are dropped, because what
    follows adds the same to both: O(stages^2 * length of the front). Costs that differ by rounding count as one.

    Args:
        stages: Number of stages.
        choices: Ways to make a group of the stages from one number up to another; none where it must not be one.
        budget_bytes: Largest price of a grouping.

    Returns:
        The front; empty where no grouping is allowed.
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
