"""Rows that parts need from each other, and nodes that need none."""

import numpy as np
from hypothesis import given, settings

from tests.graph.toys import partitioned
from wirewise.graph import (
    split_graph,
)


@given(partitioned())
@settings(max_examples=150, deadline=None)
def test_what_a_part_sends_is_what_the_other_expects(case):
    data, owner = case
    parts = list(split_graph(data, owner))
    for p in parts:
        for q in parts:
            sent = p.own_ids[p.send_index[p.send_offsets[q.rank] : p.send_offsets[q.rank + 1]]]
            expected = q.halo_ids[q.halo_offsets[p.rank] : q.halo_offsets[p.rank + 1]]
            assert np.array_equal(sent, expected)
            assert (np.diff(expected) > 0).all() and (p.rank != q.rank or len(sent) == 0)


@given(partitioned())
@settings(max_examples=150, deadline=None)
def test_central_nodes_need_no_halo_and_marginal_nodes_do(case):
    data, owner = case
    for part in split_graph(data, owner):
        remote = part.indices >= part.num_own
        row = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
        assert set(row[remote]) == set(range(part.num_central, part.num_own))
        assert set(part.indices[remote] - part.num_own) == set(range(part.num_halo))
        for ids in (part.own_ids[: part.num_central], part.own_ids[part.num_central :]):
            assert (np.diff(ids) > 0).all()
