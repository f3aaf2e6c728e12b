"""The compiled simulator: small graphs by hand, random ones against the slow reference, and conservation."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.sim.reference import Node, arrays, graphs, simulate
from wirewise.sim.critical import critical_path, slack
from wirewise.sim.engine import run

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def times(nodes, slots=(1,), capacity=(10.0,)):
    ops, uses = arrays(nodes, list(slots), list(capacity))
    return run(ops, uses)


def test_chain_and_branches():
    out = times([Node(1.0), Node(2.0, (0,)), Node(5.0, (0,)), Node(1.0, (1, 2))])
    assert out.start.tolist() == [0, 1, 1, 6]
    assert out.end.tolist() == [1, 3, 6, 7]
    assert critical_path(out).tolist() == [0, 2, 3]


def test_resource_runs_ready_ops_by_priority_then_ready_time():
    # 0 holds the resource until 4; 1, 2 and 3 are ready at 1, 2 and 3.
    nodes = [Node(4.0, resource=0)]
    nodes += [Node(1.0, release=t, resource=0, priority=p) for t, p in ((1.0, 7), (2.0, 3), (3.0, 3))]
    assert times(nodes).start.tolist() == [0, 6, 4, 5]


def test_feasible_start_goes_before_priority():
    """An urgent op that is ready later does not hold back one that can run now."""
    out = times([Node(1.0, resource=0, priority=9), Node(1.0, release=0.5, resource=0, priority=0)])
    assert out.start.tolist() == [0, 1]


def test_gap_closes_the_slot_but_not_the_followers():
    nodes = [Node(1.0, resource=0, gap=0.5), Node(1.0, (0,)), Node(1.0, (0,), resource=0)]
    out = times(nodes)
    assert out.start.tolist() == [0, 1, 1.5]
    assert critical_path(out).tolist() == [0, 2]
    ops, _ = arrays(nodes, [1], [1.0])
    assert slack(ops, out).tolist() == [0, 0.5, 0]


def test_two_slots():
    out = times([Node(3.0, resource=0), Node(1.0, resource=0), Node(1.0, resource=0)], slots=[2])
    assert out.start.tolist() == [0, 0, 1]
    assert out.earlier.tolist() == [-1, -1, 1]


def test_next_in_the_queue_takes_another_slot_while_a_transfer_runs():
    """The transfer's end is not known when it starts; 2 must not wait for it while the other slot opens at 3."""
    nodes = [
        Node(1.0, resource=0),
        Node(3.0, resource=0),
        Node(resource=0, uses={0: 50.0}),
        Node(1.0, resource=0),
    ]
    assert times(nodes, slots=[2]).start.tolist() == [0, 0, 1, 3]


def test_transfers_share_an_interface():
    # 10 bytes alone until 0.5 s, then half the rate each.
    out = times([Node(0.0, uses={0: 10.0}), Node(0.5, uses={0: 10.0})])
    assert out.end.tolist() == [1.5, 2.0]
    assert out.start.tolist() == [0, 0]


def test_max_min_gives_away_what_a_slow_transfer_leaves():
    # 0 is held to 2 by interface 1; 1 gets the other 8 of interface 0.
    out = times([Node(uses={0: 20.0, 1: 20.0}), Node(uses={0: 40.0})], capacity=[10.0, 2.0])
    assert out.end == pytest.approx([10.0, 5.0])


def test_flows_of_a_transfer_advance_together():
    # Both grow to 7.5 until interface 1 is full with 7.5 and a third of 7.5; from 20 / 7.5 on the first has 10.
    out = times([Node(uses={0: 30.0, 1: 10.0}), Node(uses={1: 20.0})], capacity=[10.0, 10.0])
    assert out.end == pytest.approx([20 / 7.5 + 1.0, 20 / 7.5])


def test_fairness_counts_flows():
    """A transfer with two equal flows through an interface gets two shares there."""
    both = Node(uses={0: 20.0, 1: 10.0, 2: 10.0}, work=10.0)
    out = times([both, Node(uses={0: 10.0})], capacity=[9.0, 100.0, 100.0])
    assert out.end == pytest.approx([30 / 9, 30 / 9])


def test_op_that_waits_for_itself_never_runs():
    out = times([Node(1.0), Node(1.0, (2,)), Node(1.0, (1,))])
    assert np.isnan(out.end).tolist() == [False, True, True]
    assert out.order.tolist() == [0, -1, -1]


@SLOW
@given(graphs(flows=False))
def test_equal_to_the_reference_with_many_ties(graph):
    start, end, _ = simulate(*graph)
    out = times(*graph)
    assert out.start.tolist() == start.tolist()
    assert out.end.tolist() == end.tolist()


@SLOW
@given(graphs(flows=True))
def test_close_to_the_reference_with_shared_interfaces(graph):
    start, end, busiest = simulate(*graph)
    out = times(*graph)
    assert out.start == pytest.approx(start, rel=1e-9, abs=1e-9)
    assert out.end == pytest.approx(end, rel=1e-9, abs=1e-9)
    assert all(b <= c * (1 + 1e-9) for b, c in zip(busiest, graph[2], strict=True))


@SLOW
@given(graphs(flows=True))
def test_conservation(graph):
    """Nothing starts early, no resource runs too many ops, no interface carries more than its rate."""
    nodes, slots, capacity = graph
    out = times(*graph)
    assert not np.isnan(out.end).any()
    assert sorted(out.order.tolist()) == list(range(len(nodes)))
    for op, node in enumerate(nodes):
        assert out.start[op] >= max([node.release] + [out.end[b] for b in node.after])
        assert out.end[op] - out.start[op] >= node.duration - 1e-9
    for r, width in enumerate(slots):
        closed = [(out.start[i], out.end[i] + x.gap) for i, x in enumerate(nodes) if x.resource == r]
        for at, _ in closed:
            assert sum(a <= at < b - 1e-9 for a, b in closed) <= width
    for k, rate in enumerate(capacity):
        busy = [
            (out.start[i] + x.duration, out.end[i], x.uses[k]) for i, x in enumerate(nodes) if k in x.uses
        ]
        marks = sorted({t for a, b, _ in busy for t in (a, b)})
        for place, low in enumerate(marks):
            for high in marks[place + 1 :]:
                inside = sum(size for a, b, size in busy if a >= low and b <= high)
                assert inside <= rate * (high - low) * (1 + 1e-9) + 1e-9
