"""Rates of concurrent flows, by policy; limited by host interfaces only.

| policy | rates |
|---|---|
| `oes` | B / n of the narrower end, n flows on that direction of the interface (degree split; Luo et al. 2022) |
| `maxmin` | max-min fair, as TCP approaches it |
| `iter` | the earliest iteration first, max-min fair among its flows |
| `fifo` | who was ready first goes first, max-min fair among those ready at once |
| `mrtf` | the least remaining time at full rate first |
| `omcoflow` | flows for one execution end together; the set with the least remaining time first |

`omcoflow` stands for the family of online coflow methods (smallest bottleneck first, rates in proportion to what
remains, what is left over to all in that order), not for one published method to the letter. All but `oes` leave no
capacity unused that a ready flow could take.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from wirewise.plans.placement import FlowPolicy
from wirewise.sim.compiled import inner

__all__ = ["COFLOW", "FIFO", "ITER", "OES", "POLICIES", "SHORTEST", "Network", "Ready", "set_rates"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

POLICIES: tuple[FlowPolicy, ...] = get_args(FlowPolicy)
ITER, _, OES, FIFO, SHORTEST, COFLOW = range(6)
"""Numbers of the policies."""

_FULL = 1e-9
"""Fraction of an interface below which nothing is left of it."""


class Network(NamedTuple):
    """Interfaces of H hosts: out of host h is index h, into it H + h."""

    capacity: Vector
    """Bytes per second of each interface, [2 H]."""
    left: Vector
    """Bytes per second that no flow takes, [2 H]."""
    load: Vector
    """Flows, or bytes, on each; scratch. [2 H]"""


class Ready(NamedTuple):
    """Ready flows, among n ops."""

    order: Ints
    """Ready ops in the order of their keys; only the first `length` entries are valid. [n]"""
    key: Vector
    """Keys by which they are ordered, [n]."""
    grows: Ints
    """Whether an op's rate still grows; scratch. [n]"""
    out: Ints
    """Interface that each op leaves by, [n]."""
    into: Ints
    """Interface that it arrives by, [n]."""
    group: Ints
    """Op that waits for it, [n]."""
    remaining: Vector
    """Remaining bytes, [n]."""
    rate: Vector
    """Bytes per second, [n]; written by `set_rates`."""
    length: Ints
    """Number of ready flows, [1]."""


@inner
def set_rates(policy: int, ready: Ready, network: Network) -> None:
    """Set the rate of each ready flow."""
    count = ready.length[0]
    for interface in range(len(network.left)):
        network.left[interface] = network.capacity[interface]
    for place in range(count):
        ready.rate[ready.order[place]] = 0.0
    if policy == OES:
        _split(ready, network)
        return
    if policy == SHORTEST:
        for place in range(count):
            op = ready.order[place]
            width = min(network.capacity[ready.out[op]], network.capacity[ready.into[op]])
            ready.key[op] = ready.remaining[op] / width
    elif policy == COFLOW:
        _group_keys(ready, network)
    _sort(ready)
    if policy == COFLOW:
        _together(ready, network)
    first = 0
    while first < count:
        end = first + 1
        while end < count and ready.key[ready.order[end]] == ready.key[ready.order[first]]:
            end += 1
        _fill(first, end, ready, network)
        first = end


@inner
def _split(ready: Ready, network: Network) -> None:
    network.load[:] = 0.0
    for place in range(ready.length[0]):
        op = ready.order[place]
        network.load[ready.out[op]] += 1.0
        network.load[ready.into[op]] += 1.0
    for place in range(ready.length[0]):
        op = ready.order[place]
        out, into = ready.out[op], ready.into[op]
        ready.rate[op] = min(
            network.capacity[out] / network.load[out], network.capacity[into] / network.load[into]
        )


@inner
def _sort(ready: Ready) -> None:
    """Sort by key, then by who waits; the order was nearly right before."""
    for place in range(1, ready.length[0]):
        op, spot = ready.order[place], place
        while spot > 0 and _before(op, ready.order[spot - 1], ready):
            ready.order[spot] = ready.order[spot - 1]
            spot -= 1
        ready.order[spot] = op


@inner
def _before(op: int, other: int, ready: Ready) -> bool:
    if ready.key[op] != ready.key[other]:
        return ready.key[op] < ready.key[other]
    return ready.group[op] < ready.group[other]


@inner
def _fill(first: int, end: int, ready: Ready, network: Network) -> None:
    """Raise the rates of some flows alike until each of them meets a full interface."""
    # As `sim.sharing.fair_rates`, but with two interfaces a flow, all of weight 1: the general form costs searches of
    # placements a sixth of their speed.
    growing = 0
    network.load[:] = 0.0
    for place in range(first, end):
        op = ready.order[place]
        growing += _start_growing(op, ready, network)
    while growing > 0:
        step = np.inf
        for interface in range(len(network.left)):
            if network.load[interface] > 0:
                step = min(step, network.left[interface] / network.load[interface])
        for interface in range(len(network.left)):
            if network.load[interface] > 0:
                rest = network.left[interface] - step * network.load[interface]
                network.left[interface] = rest if rest > _FULL * network.capacity[interface] else 0.0
        for place in range(first, end):
            op = ready.order[place]
            if ready.grows[op] == 1:
                ready.rate[op] += step
                if network.left[ready.out[op]] == 0.0 or network.left[ready.into[op]] == 0.0:
                    ready.grows[op] = 0
                    growing -= 1
                    network.load[ready.out[op]] -= 1.0
                    network.load[ready.into[op]] -= 1.0


@inner
def _start_growing(op: int, ready: Ready, network: Network) -> int:
    out, into = ready.out[op], ready.into[op]
    if network.left[out] == 0.0 or network.left[into] == 0.0:
        ready.grows[op] = 0
        return 0
    ready.grows[op] = 1
    network.load[out] += 1.0
    network.load[into] += 1.0
    return 1


@inner
def _group_keys(ready: Ready, network: Network) -> None:
    """Key of a set: seconds that its remaining bytes take alone, on the interface that takes longest."""
    for place in range(ready.length[0]):
        op = ready.order[place]
        ready.grows[op] = 0
    for place in range(ready.length[0]):
        op = ready.order[place]
        if ready.grows[op] == 0:
            key = _bottleneck_s(place, ready, network, network.capacity)
            for other in range(place, ready.length[0]):
                if ready.group[ready.order[other]] == ready.group[op]:
                    ready.key[ready.order[other]] = key
                    ready.grows[ready.order[other]] = 1


@inner
def _bottleneck_s(first: int, ready: Ready, network: Network, rates: Vector) -> float:
    """Seconds of the set of the flow at place `first`, whose other flows come later, at these rates."""
    group = ready.group[ready.order[first]]
    network.load[:] = 0.0
    for place in range(first, ready.length[0]):
        op = ready.order[place]
        if ready.group[op] == group:
            network.load[ready.out[op]] += ready.remaining[op]
            network.load[ready.into[op]] += ready.remaining[op]
    seconds = 0.0
    for interface in range(len(rates)):
        if network.load[interface] > 0.0:
            if rates[interface] <= 0.0:
                return np.inf
            seconds = max(seconds, network.load[interface] / rates[interface])
    return seconds


@inner
def _together(ready: Ready, network: Network) -> None:
    """Rates with which the flows of a set end together, set by set in their order."""
    first = 0
    while first < ready.length[0]:
        group, end = ready.group[ready.order[first]], first
        seconds = _bottleneck_s(first, ready, network, network.left)
        while end < ready.length[0] and ready.group[ready.order[end]] == group:
            op = ready.order[end]
            if 0.0 < seconds < np.inf:
                rate = ready.remaining[op] / seconds
                ready.rate[op] = rate
                for interface in (ready.out[op], ready.into[op]):
                    rest = network.left[interface] - rate
                    network.left[interface] = rest if rest > _FULL * network.capacity[interface] else 0.0
            end += 1
        first = end
