"""Collectives along a dimension of a mesh: every change of a layout, by threads and over gloo."""

from __future__ import annotations

import itertools

import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.parallel.ranks import on_mesh
from wirewise.plans.parallel import parse_placements
from wirewise.runtime.parallel.groups import RankGroups, start_move
from wirewise.runtime.parallel.parts import join_shards, slice_shard
from wirewise.runtime.transport import Transport

RANKS = 4
CHANGES = list(itertools.permutations(parse_placements(["R", "P", "S0", "S1", "S1/2"]), 2))


def addends(before, rank):
    """Parts of a fixed tensor, partial sums that are no multiples of each other."""
    whole = torch.arange(8.0 * 32).reshape(8, 32)
    if before.kind == "P":
        return whole * [0.5, -1.0, 1.25, 0.25][rank]
    return slice_shard(whole, before, RANKS, rank)


def changed(groups, axis=0):
    rank = groups.place[axis]
    return [
        start_move(groups, axis, addends(before, rank), before, after).wait() for before, after in CHANGES
    ]


def check(results):
    whole = torch.arange(8.0 * 32).reshape(8, 32)
    for number, (before, after) in enumerate(CHANGES):
        parts = [one[number] for one in results]
        torch.testing.assert_close(join_shards(parts, after), whole, msg=f"{before} to {after}")


def test_every_change_between_threads():
    check(on_mesh((RANKS,), changed))


def test_every_change_along_one_dimension_of_two():
    results = on_mesh((2, RANKS), changed, 1)
    check(results[:RANKS])
    check(results[RANKS:])


def test_every_change_over_gloo():
    check(run_ranks_as_threads(RANKS, _over_gloo))


def _over_gloo(rank, group, store):
    return changed(RankGroups([Transport(group, timeout_s=20.0)]))


def test_maxima_are_those_of_all_ranks():
    def largest(groups):
        return groups.all_reduce(0, torch.tensor([1.0, -5.0]) * groups.place[0], "max").wait()

    assert [one.tolist() for one in on_mesh((3,), largest)] == [[2.0, 0.0]] * 3


def test_a_tensor_that_is_reduced_stays_what_it_was():
    def reduced(rank, group, store):
        groups, own = RankGroups([Transport(group, timeout_s=20.0)]), torch.ones(3)
        return own, groups.all_reduce(0, own).wait()

    for own, total in run_ranks_as_threads(2, reduced):
        assert own.tolist() == [1.0] * 3 and total.tolist() == [2.0] * 3
