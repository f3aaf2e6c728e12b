"""Graphs built op by op run as written: order, resources of one op at a time, shared interfaces."""

from __future__ import annotations

import numpy as np

from wirewise.sim.op_graph import OpGraph


def test_ops_follow_each_other_and_share_resources_and_interfaces() -> None:
    graph = OpGraph()
    first = graph.add(1.0, resource="device", priority=1)
    urgent = graph.add(2.0, resource="device", priority=0)
    alone = graph.add(0.5)
    one = graph.add(0.1, work=100.0, interfaces=[0], weights=[1.0])
    other = graph.add(0.1, work=100.0, interfaces=[0, 1], weights=[1.0, 2.0])
    graph.follows(alone, None)
    graph.follows(one, alone)
    graph.follows(other, alone)
    assert len(graph) == 5
    found = graph.run(np.array([100.0, 1000.0]))
    assert found.end[urgent] == 2.0
    assert (found.start[first], found.end[first]) == (2.0, 3.0)
    # Both flow over interface 0 at half of its 100 bytes a second, once their latency is over.
    np.testing.assert_allclose(found.end[[one, other]], 0.6 + 2.0)


def test_a_cycle_never_runs_and_an_empty_graph_ends() -> None:
    graph = OpGraph()
    first, second = graph.add(1.0), graph.add(1.0)
    graph.follows(first, second)
    graph.follows(second, first)
    assert np.isnan(graph.run(np.array([1.0])).end).all()
    assert len(OpGraph().run(np.array([1.0])).end) == 0
