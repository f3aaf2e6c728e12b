"""Costs of messages between every two ranks, and what they say about the interfaces of the ranks' hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.link import LinkCost
from wirewise.errors import InputError

__all__ = [
    "Ints",
    "Matrix",
    "PairCosts",
    "Vector",
    "between_hosts",
    "fastest",
    "inverse",
    "pairs_of",
    "rates_of",
]

Ints = NDArray[np.int64]
Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PairCosts:
    """Seconds of a message of n bytes that has the links for itself: latency_s + s_per_byte * n."""

    latency_s: Matrix
    """[sender, receiver]; the diagonal is ignored."""
    s_per_byte: Matrix
    """[sender, receiver]; infinite where no path leads past no other rank."""

    def cost(self, sender: int, receiver: int) -> LinkCost:
        """Cost of one pair."""
        return LinkCost(
            latency_s=float(self.latency_s[sender, receiver]),
            s_per_byte=float(self.s_per_byte[sender, receiver]),
        )


def pairs_of(costs: Mapping[tuple[int, int], LinkCost] | LinkCost, world_size: int) -> PairCosts:
    """Matrices from the cost of each (sender, receiver), or from one cost for all.

    Raises:
        InputError: A pair is missing.
    """
    latency, slope = np.zeros((world_size, world_size)), np.zeros((world_size, world_size))
    for s in range(world_size):
        for r in range(world_size):
            if s == r:
                continue
            if isinstance(costs, Mapping) and (s, r) not in costs:
                raise InputError(f"no link cost from rank {s} to rank {r}; measure all {world_size} ranks")
            cost = costs[s, r] if isinstance(costs, Mapping) else costs
            latency[s, r], slope[s, r] = cost.latency_s, cost.s_per_byte
    return PairCosts(latency, slope)


def inverse(values: Vector) -> Vector:
    """1 / values; infinite for 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / values)


def fastest(s_per_byte: Matrix, host: Ints, hosts: int) -> tuple[Vector, Vector]:
    """Seconds a byte of the fastest pair that leaves and that enters each host, [hosts]; infinite where none does."""
    slope = np.where(host[:, None] != host, s_per_byte, np.inf)
    out, into = np.full(hosts, np.inf), np.full(hosts, np.inf)
    np.minimum.at(out, host, slope.min(axis=1, initial=np.inf))
    np.minimum.at(into, host, slope.min(axis=0, initial=np.inf))
    return out, into


def rates_of(pairs: PairCosts, host: Ints, hosts: int) -> tuple[Vector, Vector]:
    """Bytes a second out of each host and into it, [hosts], if its fastest pair has all of its interface."""
    out, into = (inverse(side) for side in fastest(pairs.s_per_byte, host, hosts))
    return np.where(out > 0, out, np.inf), np.where(into > 0, into, np.inf)


def between_hosts(pairs: PairCosts, host: Ints, hosts: int) -> tuple[Matrix, Vector]:
    """Largest latency of a pair from host to host, [hosts, hosts], and what the ranks of each carry, [hosts].

    Ranks of a host that all send at once, as those of a ring do, each have the rate of the host's slowest pair.
    """
    latency, slowest = np.zeros((hosts, hosts)), np.zeros(hosts)
    apart = ~np.eye(len(host), dtype=bool)
    sender, receiver = np.nonzero(apart)
    np.maximum.at(latency, (host[sender], host[receiver]), pairs.latency_s[apart])
    inside = (host[sender] == host[receiver]) & np.isfinite(pairs.s_per_byte[apart])
    np.maximum.at(slowest, host[sender][inside], pairs.s_per_byte[apart][inside])
    return latency, inverse(slowest / np.maximum(np.bincount(host, minlength=hosts), 1))
