"""Caches that know the batches to come."""

from itertools import permutations

import numpy as np
from benchmarks.cache_volume.lookahead import fetched_rows, remote_rows
from tests.planners.cache.problems import block_problem


def fewest(rows, room):
    """Fewest fetched rows, by trying every choice of what to keep behind each batch."""
    best = {frozenset(): 0}
    for batch in map(frozenset, rows):
        after = {}
        for held, total in best.items():
            for order in permutations(held | batch, min(room, len(held | batch))):
                key, value = frozenset(order), total + len(batch - held)
                after[key] = min(after.get(key, value), value)
        best = after
    return min(best.values())


def test_knowing_all_batches_fetches_the_fewest_rows():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = [rng.choice(6, rng.integers(1, 4), replace=False) for _ in range(6)]
        for room in (0, 1, 2, 3):
            assert fetched_rows(rows, 6, static=np.empty(0, int), room=room) == fewest(rows, room)


def test_looking_further_ahead_fetches_fewer_rows():
    problem = block_problem(16)
    rows, nothing = remote_rows(problem, 0, [0, 1]), np.empty(0, np.int64)
    whole = sum(map(len, rows))
    found = [fetched_rows(rows, 6000, static=nothing, room=400, window=w) for w in (0, 1, 10, None)]
    assert whole == found[0] > found[1] > found[2] >= found[3]
