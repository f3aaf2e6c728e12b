"""Bandwidth sharing on interfaces: max-min or proportional rates, recomputed only where a change has effect.

A transfer is coupled: all its flows advance together, as the hops of a ring do. Its speed is that of its largest flow;
on an interface it takes `weight` times that speed. Progressive filling raises the speeds of all transfers alike until
an interface is full, holds those that use it, and continues with the others.

Proportional rates are those of connections with windows of bytes in queues that serve in the order of arrival, as TCP
has them (Massoulié and Roberts, "Bandwidth sharing: objectives and algorithms", 2002, section II.C): the sum of the
logarithms of all rates is the largest. A transfer over two full interfaces gets a third where max-min rates give half.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.sim.compiled import inner, outer

__all__ = [
    "NONE",
    "InterfaceUse",
    "Shares",
    "fair_rates",
    "join",
    "leave",
    "new_shares",
    "proportional_rates",
]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

NONE = -1
_SAME = 1.0 + 1e-12
_NEAR = 1e-4
"""Relative error of a full interface's load at which prices are found."""
_MOST_SWEEPS, _MOST_STEPS = 200, 50
_MOST_TRANSFERS = 512
"""Above it prices cost more than they tell: an all-to-all of 64 ranks takes 36 s and not 8, for 0.09 % of its time."""


class InterfaceUse(NamedTuple):
    """Interfaces used by each of n transfers (sparse rows), and the bandwidth of K interfaces."""

    indptr: Ints
    """First use of each transfer, [n + 1]."""
    interface: Ints
    """Interface of each use, [uses]."""
    weight: Vector
    """Bytes on the interface per byte of the transfer's largest flow, above 0, [uses]."""
    owner: Ints
    """Transfer of each use, [uses]."""
    capacity: Vector
    """Bytes per second of each interface, above 0 and finite, [K]."""


class Shares(NamedTuple):
    """Running transfers: a list of uses for each interface, and scratch space of `fair_rates`."""

    head: Ints
    """First running use on each interface or NONE, [K]."""
    after: Ints
    """Next and `before` previous running use on the same interface, [uses]."""
    before: Ints
    fair: Vector
    """Speeds computed by `fair_rates`, in bytes per second of the largest flow, [n]."""
    members: Ints
    """Transfers whose speeds `fair_rates` computed, [n]."""
    reached: Ints
    """Interfaces that it reached, [K]."""
    seen: Ints
    """Stamp of the last visit of an interface, [K]."""
    held: Ints
    """Stamp of the last visit of a transfer, negative while its speed may grow, [n]."""
    left: Vector
    """Bytes per second that held transfers leave, [K]."""
    load: Vector
    """Weight of the transfers that may grow, [K]."""
    price: Vector
    """Price of each interface in the last `proportional_rates`, seconds per byte, [K]."""


@outer
def new_shares(ops: int, uses: int, interfaces: int) -> Shares:
    """Shares without running transfers."""
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
        np.zeros(interfaces),
    )


@inner
def join(op: int, uses: InterfaceUse, shares: Shares) -> None:
    """Add a transfer to the lists of its interfaces."""
    for use in range(uses.indptr[op], uses.indptr[op + 1]):
        k = uses.interface[use]
        first = shares.head[k]
        shares.after[use], shares.before[use] = first, NONE
        if first != NONE:
            shares.before[first] = use
        shares.head[k] = use


@inner
def leave(op: int, uses: InterfaceUse, shares: Shares) -> None:
    """Remove a transfer from the lists of its interfaces."""
    for use in range(uses.indptr[op], uses.indptr[op + 1]):
        before, after = shares.before[use], shares.after[use]
        if before == NONE:
            shares.head[uses.interface[use]] = after
        else:
            shares.after[before] = after
        if after != NONE:
            shares.before[after] = before


@inner
def fair_rates(start: int, uses: InterfaceUse, shares: Shares, stamp: int) -> int:
    """Compute max-min rates of all transfers that share interface `start`, directly or through others.

    Args:
        start: Index of an interface.
        uses: Interface use of transfers.
        shares: Running transfers; receives `members` and `fair`.
        stamp: Number above that of every earlier call, from 1.

    Returns:
        Number of these transfers.
    """
    count, interfaces = _reach(start, uses, shares, stamp)
    _fill(count, interfaces, uses, shares, stamp)
    return count


@inner
def _fill(count: int, interfaces: int, uses: InterfaceUse, shares: Shares, stamp: int) -> None:
    """Progressive filling of what `_reach` collected."""
    growing, level = count, 0.0
    while growing > 0:
        # Rounding must not bring a later level below an earlier one.
        interfaces, least = _level(interfaces, shares)
        level = max(level, least)
        growing -= _hold(interfaces, level, uses, shares, stamp)
        if growing > 0:
            for position in range(interfaces):
                _weigh(shares.reached[position], uses, shares, stamp)


@inner
def _reach(start: int, uses: InterfaceUse, shares: Shares, stamp: int) -> tuple[int, int]:
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
def _weigh(k: int, uses: InterfaceUse, shares: Shares, stamp: int) -> None:
    """Rest of an interface beside held transfers, and the weight of those that may grow."""
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
def _hold(interfaces: int, level: float, uses: InterfaceUse, shares: Shares, stamp: int) -> int:
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


@inner
def proportional_rates(start: int, uses: InterfaceUse, shares: Shares, stamp: int) -> int:
    """Compute proportional rates of all transfers that share interface `start`; arguments as in `fair_rates`.

    The dual of the largest sum of logarithms: a transfer's speed is one over the prices of its interfaces, by weight.
    Each interface in turn gets the price at which it is just full, or none, until all are nearly so. Prices begin with
    those of the last call, since one transfer more or less changes few. Among very many transfers speeds are max-min.
    """
    count, interfaces = _reach(start, uses, shares, stamp)
    if count > _MOST_TRANSFERS:
        _fill(count, interfaces, uses, shares, stamp)
        return count
    for position in range(count):
        op = shares.members[position]
        shares.fair[op] = _price_of(op, uses, shares)
    for _ in range(_MOST_SWEEPS):
        apart = 0.0
        for position in range(interfaces):
            if shares.head[shares.reached[position]] != NONE:
                apart = max(apart, _reprice(shares.reached[position], uses, shares))
        if apart <= _NEAR:
            break
    for position in range(count):
        # Subtractions have left rounding in the sums.
        op = shares.members[position]
        shares.fair[op] = 1.0 / _price_of(op, uses, shares)
    # What prices leave beyond an interface's capacity is taken off all that use it.
    for position in range(interfaces):
        k = shares.reached[position]
        shares.load[k] = max(_carried(k, uses, shares) / uses.capacity[k], 1.0)
    for position in range(count):
        op, over = shares.members[position], 1.0
        for use in range(uses.indptr[op], uses.indptr[op + 1]):
            over = max(over, shares.load[uses.interface[use]])
        shares.fair[op] /= over
    return count


@inner
def _price_of(op: int, uses: InterfaceUse, shares: Shares) -> float:
    total = 0.0
    for use in range(uses.indptr[op], uses.indptr[op + 1]):
        total += uses.weight[use] * shares.price[uses.interface[use]]
    return total


@inner
def _carried(k: int, uses: InterfaceUse, shares: Shares) -> float:
    carried = 0.0
    use = shares.head[k]
    while use != NONE:
        carried += uses.weight[use] * shares.fair[uses.owner[use]]
        use = shares.after[use]
    return carried


@inner
def _reprice(k: int, uses: InterfaceUse, shares: Shares) -> float:
    """Set the price at which an interface is just full, and the sums of prices of its transfers, in `fair`.

    Returns:
        By how much of its capacity the old price missed.
    """
    capacity, old = uses.capacity[k], shares.price[k]
    # A price at which one transfer alone fills it is not above the right one.
    least = 0.0
    use = shares.head[k]
    while use != NONE:
        others = max(shares.fair[uses.owner[use]] - uses.weight[use] * old, 0.0)
        least = max(least, 1.0 / capacity - others / uses.weight[use])
        use = shares.after[use]
    # The load falls with the price and is convex: Newton's steps end from the side of too low prices.
    price, missed = max(old, least), 0.0 if old >= least else 1.0
    for step in range(_MOST_STEPS):
        load, slope = 0.0, 0.0
        use = shares.head[k]
        while use != NONE:
            weight = uses.weight[use]
            each = weight / (max(shares.fair[uses.owner[use]] - weight * old, 0.0) + weight * price)
            load += each
            slope += each * each
            use = shares.after[use]
        off = load / capacity - 1.0
        if step == 0 and (off > 0.0 or price > least):
            missed = max(missed, abs(off))
        if abs(off) <= _SAME - 1.0 or (off < 0.0 and price <= least):
            break
        price = max(price + (load - capacity) / slope, least)
    if price != old:
        use = shares.head[k]
        while use != NONE:
            op = uses.owner[use]
            shares.fair[op] = max(shares.fair[op] + uses.weight[use] * (price - old), 0.0)
            use = shares.after[use]
        shares.price[k] = price
    return missed
