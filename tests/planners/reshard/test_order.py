"""Orders of slices that share hosts (R6)."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from wirewise.errors import PlanError
from wirewise.planners.reshard.order import ORDERS, choices, makespan_s, order_slices


def instance(seed: int, count: int, *, most_options: int = 3, hosts: int = 4):
    """Slices of random sizes, each with some sending hosts and some receiving ones."""
    random = np.random.default_rng(seed)
    options = []
    for _ in range(count):
        senders = random.choice(hosts, random.integers(1, most_options + 1), replace=False)
        receivers = random.choice(hosts, random.integers(1, 3), replace=False)
        size = float(random.integers(1, 10))
        options.append([(size, [2 * int(s), *(2 * int(hosts + r) + 1 for r in receivers)]) for s in senders])
    return choices(options)


def bound_s(given) -> float:
    """Load that no choice takes from a way, at least."""
    load = np.zeros(given.way_count)
    for task in range(len(given.first) - 1):
        held = np.full((given.first[task + 1] - given.first[task], given.way_count), 0.0)
        for row, one in enumerate(range(given.first[task], given.first[task + 1])):
            held[row, given.ways[given.begins[one] : given.begins[one + 1]]] = given.seconds[one]
        load += held.min(axis=0)
    return float(load.max())


@njit(cache=False)
def brute_force(first, begins, ways, seconds, count):
    """Least makespan over all orders and options, by counting through both."""
    n = len(first) - 1
    best, order = np.inf, np.arange(n)
    total = 1
    for task in range(n):
        total *= first[task + 1] - first[task]
    swaps, place = np.zeros(n, np.int64), 0
    fresh = True
    while True:
        if fresh:
            for code in range(total):
                free, rest, end = np.zeros(count), code, 0.0
                chosen = np.zeros(n, np.int64)
                for task in range(n):
                    options = first[task + 1] - first[task]
                    chosen[task] = first[task] + rest % options
                    rest //= options
                for task in order:
                    at = 0.0
                    for use in range(begins[chosen[task]], begins[chosen[task] + 1]):
                        at = max(at, free[ways[use]])
                    for use in range(begins[chosen[task]], begins[chosen[task] + 1]):
                        free[ways[use]] = at + seconds[chosen[task]]
                    end = max(end, at + seconds[chosen[task]])
                best = min(best, end)
        if place == n:
            return best
        if swaps[place] < place:
            other = 0 if place % 2 == 0 else swaps[place]
            order[other], order[place] = order[place], order[other]
            swaps[place] += 1
            place, fresh = 0, True
        else:
            swaps[place] = 0
            place, fresh = place + 1, False


def test_the_search_finds_what_brute_force_finds():
    for seed in range(200):
        given = instance(seed, 1 + seed % 6, most_options=2 if seed % 6 > 3 else 3)
        found = order_slices(given, "search", nodes=10**7)
        assert found.complete
        assert found.seconds == pytest.approx(brute_force(*given), rel=1e-12)


def test_every_order_is_what_it_says():
    for seed in range(20):
        given = instance(seed, 12)
        for method in ORDERS:
            found = order_slices(given, method, nodes=20_000)
            assert sorted(found.order.tolist()) == list(range(12))
            option = given.first[:-1] + found.option
            assert (option < given.first[1:]).all()
            assert makespan_s(given, found.order, option) == pytest.approx(found.seconds)
            assert found.seconds >= bound_s(given) * (1 - 1e-12)
            assert order_slices(given, method, nodes=20_000).order.tolist() == found.order.tolist()
        assert order_slices(given, "auto").seconds <= min(order_slices(given, m).seconds for m in ORDERS) * (
            1 + 1e-12
        )


def test_orders_of_many_slices_are_near_the_best_known():
    worst = 0.0
    for seed in range(200):
        given = instance(seed, 20 + seed % 41, hosts=3 + seed % 6)
        found = order_slices(given, "auto").seconds
        others = [
            order_slices(given, method, seed=1000 + seed).seconds for method in ("list", "greedy", "size")
        ]
        # A better order may exist; the load of a way is below all of them.
        worst = max(worst, found / max(bound_s(given), min([found, *others]) / 1.1))
        assert found <= 1.10 * min(others)
    assert worst <= 1.10


def test_nothing_to_order():
    assert order_slices(choices([])).seconds == 0.0
    with pytest.raises(PlanError, match="unknown order 'best'; expected one of: auto, search"):
        order_slices(choices([]), "best")
