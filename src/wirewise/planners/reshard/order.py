"""Senders and order of all slices that minimise the arrival of the last slice.

A slice occupies the outgoing interface of its sender's host and the incoming interface of each receiving host from its
start to its end; the makespan is minimised. It is an open shop whose jobs need several machines at once (NP-hard).
AlpaComm (Y. Zhuang et al., MLSys 2023, section 3.3) searches depth first and samples maximal sets of slices that share
no host.

The search tries starts in order of time, which excludes no left-shifted schedule. It prunes where the remaining load
of an interface cannot end before the best schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import PlanError
from wirewise.jit import njit

__all__ = ["ORDERS", "Choices", "OrderedSlices", "choices", "makespan_s", "order_slices"]

Ints = NDArray[np.int64]
Vector = NDArray[np.float64]

ORDERS = ("auto", "search", "greedy", "list", "size", "naive")
"""Names of methods. auto: the best of all others. search: depth first. greedy: sampled sets that share no host. list:
slices that can start first, on the most loaded interfaces. size: in the given order, from the host that has sent
least. naive: in the given order, from the first host."""

_RESTARTS = 32
_DRAWS = 100
_NODES = 50_000
_MOST_SEARCHED = 12
"""Slices up to which "auto" searches."""


class Choices(NamedTuple):
    """Slices, with hosts that can send each, as arrays."""

    first: Ints
    """First option of each slice, [n + 1]."""
    begins: Ints
    """First entry of `ways` of each option, [options + 1]."""
    ways: Ints
    """Ways that an option holds."""
    seconds: Vector
    """Seconds for which an option holds them, [options]."""
    way_count: int
    """Number of ways."""


class OrderedSlices(NamedTuple):
    """Order of slices."""

    order: Ints
    """Slices by start, [n]."""
    option: Ints
    """Chosen option of each slice, counted from its first, [n]."""
    start_s: Vector
    """Start of each slice, in seconds, [n]."""
    seconds: float
    """End of the last slice."""
    complete: bool = False
    """Whether the search proved that no order is faster."""


def choices(options: Sequence[Sequence[tuple[float, Sequence[int]]]]) -> Choices:
    """Pack times and interface numbers (from 0) of each slice's options into arrays."""
    flat = [one for own in options for one in own]
    return Choices(
        first=np.cumsum([0, *(len(own) for own in options)]).astype(np.int64),
        begins=np.cumsum([0, *(len(ways) for _, ways in flat)]).astype(np.int64),
        ways=np.array([way for _, ways in flat for way in ways], np.int64),
        seconds=np.array([seconds for seconds, _ in flat], np.float64),
        way_count=1 + max((way for _, ways in flat for way in ways), default=0),
    )


def order_slices(
    choices: Choices, method: str = "auto", *, seed: int = 0, nodes: int = _NODES
) -> OrderedSlices:
    """Order the slices by one of `ORDERS`; deterministic for a seed on every machine.

    Args:
        choices: Slices and their options.
        method: Name of the method.
        seed: Seed of randomised orders.
        nodes: Maximum number of search steps, after which the best order is returned.

    Raises:
        PlanError: The method is unknown.
    """
    if method not in ORDERS:
        raise PlanError(f"unknown order {method!r}; expected one of: {', '.join(ORDERS)}")
    count = len(choices.first) - 1
    if not count:
        nothing = np.zeros(0, np.int64)
        return OrderedSlices(nothing, nothing, np.zeros(0), 0.0, True)
    if method == "naive":
        return _ordered_slices(choices, np.arange(count), choices.first[:-1].copy())
    if method == "size":
        return _ordered_slices(choices, np.arange(count), _least_loaded(*choices))
    found = [order_slices(choices, "size")] if method == "auto" else []
    if method in ("greedy", "auto"):
        found.append(_ordered_slices(choices, *_greedy(*choices, _DRAWS, seed)))
    if method in ("list", "search", "auto"):
        found.append(_ordered_slices(choices, *_listed(*choices, _RESTARTS, seed)))
    best = min(found, key=lambda one: one.seconds)
    if method == "search" or (method == "auto" and count <= _MOST_SEARCHED):
        order, option, better, steps = _search(*choices, best.seconds, nodes)
        best = _ordered_slices(choices, order, option) if better else best
        return best._replace(complete=steps < nodes)
    return best


def makespan_s(choices: Choices, order: Ints, option: Ints) -> float:
    """End of the last slice, in seconds, if each starts as soon as earlier ones in the order allow.

    Args:
        choices: Slices and their options.
        order: Slices in start order, [n].
        option: Chosen option of each, indexed over all slices, [n].
    """
    return float(_starts(*choices, order, option)[1])


def _ordered_slices(choices: Choices, order: Ints, option: Ints) -> OrderedSlices:
    start, seconds = _starts(*choices, order, option)
    by_start = order[np.argsort(start[order], kind="stable")]
    return OrderedSlices(by_start, option - choices.first[:-1], start, float(seconds))


@njit()
def _starts(
    first: Ints, begins: Ints, ways: Ints, seconds: Vector, count: int, order: Ints, option: Ints
) -> tuple[Vector, float]:
    free, start, last = np.zeros(count), np.zeros(len(order)), 0.0
    for task in order:
        one = option[task]
        at = 0.0
        for use in range(begins[one], begins[one + 1]):
            at = max(at, free[ways[use]])
        start[task] = at
        for use in range(begins[one], begins[one + 1]):
            free[ways[use]] = at + seconds[one]
        last = max(last, at + seconds[one])
    return start, last


@njit()
def _least_loaded(first: Ints, begins: Ints, ways: Ints, seconds: Vector, count: int) -> Ints:
    """Option whose own way, the first one it names, has sent least."""
    load, option = np.zeros(count), np.zeros(len(first) - 1, np.int64)
    for task in range(len(first) - 1):
        best = first[task]
        for one in range(first[task], first[task + 1]):
            if load[ways[begins[one]]] < load[ways[begins[best]]]:
                best = one
        option[task] = best
        load[ways[begins[best]]] += seconds[best]
    return option


@njit()
def _drawn(state: NDArray[np.uint64]) -> float:
    """A number from 0 to 1 (xorshift)."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return float(x >> np.uint64(11)) / 9007199254740992.0


@njit()
def _greedy(
    first: Ints, begins: Ints, ways: Ints, seconds: Vector, count: int, draws: int, seed: int
) -> tuple[Ints, Ints]:
    """Sets of slices that share no way, the largest of some drawn ones, the next set after it until none is left."""
    n = len(first) - 1
    state = np.full(1, np.uint64(88172645463325252) ^ (np.uint64(seed + 1) << np.uint64(20)))
    order, option, placed = np.empty(n, np.int64), first[:-1].copy(), 0
    load, left = np.zeros(count), np.arange(n)
    taken, kept, chosen = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    busy = np.zeros(count, np.bool_)
    while len(left):
        most, least_spread, size = -1.0, np.inf, 0
        for _ in range(draws):
            for place in range(len(left) - 1, 0, -1):
                other = int(_drawn(state) * (place + 1))
                left[place], left[other] = left[other], left[place]
            busy[:] = False
            own, weight, spread, mean = 0, 0.0, 0.0, 0.0
            for task in left:
                top = 0.0
                for one in range(first[task], first[task + 1]):
                    top = max(top, load[ways[begins[one]]])
                sum_of, pick = 0.0, -1
                for one in range(first[task], first[task + 1]):
                    fits = True
                    for use in range(begins[one], begins[one + 1]):
                        fits = fits and not busy[ways[use]]
                    if fits:
                        share = 1.0 + (top - load[ways[begins[one]]]) / seconds[one]
                        sum_of += share
                        if _drawn(state) * sum_of <= share:
                            pick = one
                if pick < 0:
                    continue
                for use in range(begins[pick], begins[pick + 1]):
                    busy[ways[use]] = True
                kept[own], chosen[task] = task, pick
                own += 1
                weight += seconds[pick]
                sent = load[ways[begins[pick]]] + seconds[pick]
                spread, mean = spread + sent * sent, mean + sent
            spread = spread / own - (mean / own) ** 2
            if weight > most * (1 + 1e-9) or (weight > most * (1 - 1e-9) and spread < least_spread):
                most, least_spread, size = weight, spread, own
                taken[:own] = kept[:own]
                for place in range(own):
                    option[kept[place]] = chosen[kept[place]]
        for place in range(size):
            task = taken[place]
            load[ways[begins[option[task]]]] += seconds[option[task]]
            order[placed] = task
            placed += 1
        rest, write = np.zeros(n, np.bool_), 0
        for place in range(size):
            rest[taken[place]] = True
        fewer = np.empty(len(left) - size, np.int64)
        for task in left:
            if not rest[task]:
                fewer[write] = task
                write += 1
        left = fewer
    return order, option


@njit()
def _listed(
    first: Ints, begins: Ints, ways: Ints, seconds: Vector, count: int, restarts: int, seed: int
) -> tuple[Ints, Ints]:
    """The slice that can start first is next; of several, the one on the fullest ways, which draws blur."""
    n = len(first) - 1
    state = np.full(1, np.uint64(88172645463325252) ^ (np.uint64(seed + 7) << np.uint64(20)))
    best_order, best_option, best = np.arange(n), first[:-1].copy(), np.inf
    total = np.zeros(count)
    for task in range(n):
        options = first[task + 1] - first[task]
        for one in range(first[task], first[task + 1]):
            for use in range(begins[one], begins[one + 1]):
                total[ways[use]] += seconds[one] / options
    order, option = np.empty(n, np.int64), np.empty(n, np.int64)
    free, rest, done = np.zeros(count), np.zeros(count), np.zeros(n, np.bool_)
    for restart in range(restarts):
        free[:], rest[:], done[:] = 0.0, total, False
        last, noise = 0.0, 0.0 if restart == 0 else 0.6 * _drawn(state)
        for step in range(n):
            pick, at_best, weight_best, end_best = -1, np.inf, -1.0, 0.0
            task_best = 0
            for task in range(n):
                if done[task]:
                    continue
                for one in range(first[task], first[task + 1]):
                    at, weight = 0.0, 0.0
                    for use in range(begins[one], begins[one + 1]):
                        at = max(at, free[ways[use]])
                    for use in range(begins[one], begins[one + 1]):
                        weight = max(weight, rest[ways[use]])
                    own = rest[ways[begins[one]]]
                    # Of several senders, the one with the least left to send.
                    weight = weight * (1.0 + noise * _drawn(state)) - 1e-3 * own - seconds[one] * 1e-6
                    if at < at_best - 1e-15 or (at <= at_best + 1e-15 and weight > weight_best):
                        pick, at_best, weight_best, task_best = one, at, weight, task
                        end_best = at + seconds[one]
            done[task_best], order[step], option[task_best] = True, task_best, pick
            options = first[task_best + 1] - first[task_best]
            for one in range(first[task_best], first[task_best + 1]):
                for use in range(begins[one], begins[one + 1]):
                    rest[ways[use]] -= seconds[one] / options
            for use in range(begins[pick], begins[pick + 1]):
                free[ways[use]] = end_best
            last = max(last, end_best)
            if last >= best:
                break
        if last < best:
            best = last
            best_order[:], best_option[:] = order, option
    return best_order, best_option


@njit()
def _search(
    first: Ints, begins: Ints, ways: Ints, seconds: Vector, count: int, best: float, nodes: int
) -> tuple[Ints, Ints, bool, int]:
    """Depth first over the next slice and its option, by starts in order of time.

    Returns:
        Order, options, whether they are quicker than `best`, and the number of steps; as many as `nodes`: not complete.
    """
    n = len(first) - 1
    order, option = np.arange(n), first[:-1].copy()
    now_order, now_option = np.empty(n, np.int64), np.empty(n, np.int64)
    # What a slice holds under every option, and for at least how long.
    least = np.zeros((n, count))
    for task in range(n):
        for way in range(count):
            shortest = np.inf
            for one in range(first[task], first[task + 1]):
                held = 0.0
                for use in range(begins[one], begins[one + 1]):
                    if ways[use] == way:
                        held = seconds[one]
                shortest = min(shortest, held)
            least[task, way] = shortest
    free, rest = np.zeros((n + 1, count)), np.zeros((n + 1, count))
    for task in range(n):
        rest[0] += least[task]
    since, ended = np.zeros(n + 1), np.zeros(n + 1)
    next_task, next_option = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    next_option[0] = first[0]
    done, depth, steps, better = np.zeros(n, np.bool_), 0, 0, False
    while depth >= 0:
        task, one = next_task[depth], next_option[depth]
        if task == n or depth == n:
            depth -= 1
            if depth >= 0:
                done[now_order[depth]] = False
            continue
        if done[task] or one == first[task + 1]:
            next_task[depth] += 1
            if next_task[depth] < n:
                next_option[depth] = first[next_task[depth]]
            continue
        next_option[depth] += 1
        steps += 1
        if steps >= nodes:
            break
        at = 0.0
        for use in range(begins[one], begins[one + 1]):
            at = max(at, free[depth, ways[use]])
        # Starts in order of time; of equal ones, slices in order of their numbers.
        if at < since[depth] or (depth and at == since[depth] and task < now_order[depth - 1]):
            continue
        end = at + seconds[one]
        free[depth + 1], rest[depth + 1] = free[depth], rest[depth] - least[task]
        for use in range(begins[one], begins[one + 1]):
            free[depth + 1, ways[use]] = end
        ended[depth + 1] = max(ended[depth], end)
        bound = ended[depth + 1]
        for way in range(count):
            if rest[depth + 1, way] > 0.0:
                bound = max(bound, max(free[depth + 1, way], at) + rest[depth + 1, way])
        if bound >= best * (1 - 1e-12):
            continue
        now_order[depth], now_option[task] = task, one
        if depth + 1 == n:
            best, better = ended[depth + 1], True
            order[:], option[:] = now_order, now_option
            continue
        done[task] = True
        depth += 1
        since[depth], next_task[depth], next_option[depth] = at, 0, first[0]
    return order, option, better, steps
