"""Merging neighbours while logs are over the budget: as it was released, and with the cost of a merger put right."""

from __future__ import annotations

from collections.abc import Sequence


def greedy(
    compute_s: Sequence[float], sizes: Sequence[float], budget: float, rate: float, *, published: bool
) -> tuple[float, list[list[int]]]:
    """Cost and groups of machines that fail alike.

    The released rule weighs a merged pair by 2 of N and each part by 1 of N, whatever their numbers of machines.
    """
    count = len(compute_s)
    groups = [[n] for n in range(count)]

    def seconds(group: list[int]) -> float:
        inside = [sizes[n] for n in group[:-1]]
        return sum(compute_s[n] for n in group) + sum(inside) / rate

    def cost(group: list[int]) -> float:
        return len(group) / count * seconds(group)

    def dearer(one: list[int], other: list[int]) -> float:
        if published:
            return (2 * seconds(one + other) - seconds(one) - seconds(other)) / count
        return cost(one + other) - cost(one) - cost(other)

    while len(groups) > 1 and sum(sizes[group[-1]] for group in groups[:-1]) > budget:
        at = min(
            range(len(groups) - 1),
            key=lambda n: dearer(groups[n], groups[n + 1]) / sizes[groups[n][-1]],
        )
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
    return sum(map(cost, groups)), groups
