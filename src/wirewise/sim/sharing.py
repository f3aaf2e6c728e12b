"""Fair shares of interfaces: max-min rates of transfers, found again only for those that a change touches.

A transfer is coupled: all its flows advance together, as the hops of a ring do. Its speed is that of its
largest flow; on an interface it takes `weight` times that speed. Progressive filling raises the speeds of
all transfers alike until an interface is full, holds those that use it, and goes on with the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer

__all__ = ["NONE", "Shares", "Uses", "fair_rates", "join", "leave", "new_shares"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

NONE = -1
_SAME = 1.0 + 1e-12


class Uses(NamedTuple):
    """Interfaces that each of n transfers uses (sparse rows), and what K interfaces carry."""

    indptr: Ints
    """First use of each transfer, [n + 1]."""
    interface: Ints
    """Interface of each use, [uses]."""
    weight: Vector
    """Bytes on the interface per byte of the transfer's largest flow, above 0, [uses]."""
    owner: Ints
    """Transfer of each use, [uses]."""
    capacity: Vector
    """Bytes a second of each interface, above 0 and finite, [K]."""


class Shares(NamedTuple):
    """Ops that run now: a list of uses for each interface; and scratch space of `fair_rates`."""

    head: Ints
    """First running use on each interface or NONE, [K]."""
    after: Ints
    """Next and `before` previous running use on the same interface, [uses]."""
    before: Ints
    fair: Vector
    """Speeds that `fair_rates` found, bytes of the largest flow a second, [n]."""
    members: Ints
    """Transfers that `fair_rates` found speeds for, [n]."""
    reached: Ints
    """Interfaces that it reached, [K]."""
    seen: Ints
    """Stamp of the last visit of an interface, [K]."""
    held: Ints
    """Stamp of the last visit of a transfer, negative while its speed may grow, [n]."""
    left: Vector
    """Bytes a second that held transfers leave, [K]."""
    load: Vector
    """Weight of the transfers that may grow, [K]."""


@outer
def new_shares(ops: int, uses: int, interfaces: int) -> Shares:
    """Shares where nobody runs."""
    return Shares(
        np.full(interfaces, NONE, np.int64),
        np.full(uses, NONE, np.int64),
        np.full(uses, NONE, np.int64),
        np.zeros(ops),
        np.empty(ops, np.int64),
        np.empty(interfaces, np.int64),
        np.zeros(interfaces, np.int64),
        np.zeros(ops, np.int64),
        np.zeros(interfaces),
        np.zeros(interfaces),
    )


@inner
def join(op: int, uses: Uses, shares: Shares) -> None:
    """Put a transfer on the lists of its interfaces."""
    for use in range(uses.indptr[op], uses.indptr[op + 1]):
        k = uses.interface[use]
        first = shares.head[k]
        shares.after[use], shares.before[use] = first, NONE
        if first != NONE:
            shares.before[first] = use
        shares.head[k] = use


@inner
def leave(op: int, uses: Uses, shares: Shares) -> None:
    """Take a transfer off the lists of its interfaces."""
    for use in range(uses.indptr[op], uses.indptr[op + 1]):
        before, after = shares.before[use], shares.after[use]
        if before == NONE:
            shares.head[uses.interface[use]] = after
        else:
            shares.after[before] = after
        if after != NONE:
            shares.before[after] = before


@inner
def fair_rates(start: int, uses: Uses, shares: Shares, stamp: int) -> int:
    """Max-min speeds of all transfers that share interface `start`, directly or through others.

    Args:
        start: Number of an interface.
        uses: What transfers need.
        shares: Ops that run; receives `members` and `fair`.
        stamp: A number above that of every earlier call, from 1.

    Returns:
        How many transfers there are.
    """
    count, interfaces = _reach(start, uses, shares, stamp)
    growing, level = count, 0.0
    while growing > 0:
        # Rounding must not bring a later level below an earlier one.
        interfaces, least = _level(interfaces, shares)
        level = max(level, least)
        growing -= _hold(interfaces, level, uses, shares, stamp)
        if growing > 0:
            for position in range(interfaces):
                _weigh(shares.reached[position], uses, shares, stamp)
    return count


@inner
def _reach(start: int, uses: Uses, shares: Shares, stamp: int) -> tuple[int, int]:
    """Collect the connected transfers and interfaces, and weigh the interfaces."""
    shares.reached[0], shares.seen[start] = start, stamp
    interfaces, count, position = 1, 0, 0
    while position < interfaces:
        use = shares.head[shares.reached[position]]
        position += 1
        while use != NONE:
            op = uses.owner[use]
            if shares.held[op] != -stamp:
                shares.held[op] = -stamp
                shares.members[count] = op
                count += 1
                for other in range(uses.indptr[op], uses.indptr[op + 1]):
                    k = uses.interface[other]
                    if shares.seen[k] != stamp:
                        shares.seen[k] = stamp
                        shares.reached[interfaces] = k
                        interfaces += 1
            use = shares.after[use]
    for position in range(interfaces):
        _weigh(shares.reached[position], uses, shares, stamp)
    return count, interfaces


@inner
def _weigh(k: int, uses: Uses, shares: Shares, stamp: int) -> None:
    """What held transfers leave of an interface, and the weight of those that may grow."""
    left, load = uses.capacity[k], 0.0
    use = shares.head[k]
    while use != NONE:
        op = uses.owner[use]
        if shares.held[op] == -stamp:
            load += uses.weight[use]
        else:
            left -= uses.weight[use] * shares.fair[op]
        use = shares.after[use]
    shares.left[k], shares.load[k] = max(left, 0.0), load


@inner
def _level(interfaces: int, shares: Shares) -> tuple[int, float]:
    """Speed at which the next interface is full; forgets interfaces on which nothing grows."""
    level, position = np.inf, 0
    while position < interfaces:
        k = shares.reached[position]
        if shares.load[k] > 0.0:
            level = min(level, shares.left[k] / shares.load[k])
            position += 1
        else:
            interfaces -= 1
            shares.reached[position] = shares.reached[interfaces]
    return interfaces, level


@inner
def _hold(interfaces: int, level: float, uses: Uses, shares: Shares, stamp: int) -> int:
    """Hold the transfers on every interface that is full at `level`; how many they are."""
    held = 0
    for position in range(interfaces):
        k = shares.reached[position]
        if shares.left[k] > level * shares.load[k] * _SAME:
            continue
        use = shares.head[k]
        while use != NONE:
            op = uses.owner[use]
            if shares.held[op] == -stamp:
                shares.held[op] = stamp
                shares.fair[op] = level
                held += 1
            use = shares.after[use]
    return held
