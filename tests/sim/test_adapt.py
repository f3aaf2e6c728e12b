"""Event-driven trees: right in every order of events, and better under noise than trees that wait."""

import itertools

import pytest
from benchmarks.collective_planners.adapt_rules import Broadcast, Post, Reduce, Send, Windows
from benchmarks.collective_planners.event_trees import Noise, Tree, binomial, chain, mean_s, rules_of
from benchmarks.collective_planners.interleavings import explore

from wirewise.errors import InputError

SEGMENT_S = 65536 / 1.25e9


def trees(ranks):
    """All trees whose parents have lower numbers than their children: every shape is among them."""
    for parents in itertools.product(*(range(rank) for rank in range(1, ranks))):
        yield Tree.of([None, *parents])


def explored(tree, collective, segments, windows, rendezvous, **kwargs):
    kind = Broadcast if collective == "broadcast" else Reduce
    rules = [
        kind(parent, children, segments, windows, **kwargs)
        for parent, children in zip(tree.parents, tree.children, strict=True)
    ]
    flow = "down" if collective == "broadcast" else "up"
    return explore(rules, flow, segments, rendezvous=rendezvous)


def all_orders(ranks, segments, rendezvous):
    for tree in trees(ranks):
        for sends, receives in itertools.product((1, 2), (1, 2)):
            for collective in ("broadcast", "reduce"):
                found = explored(tree, collective, segments, Windows(sends, receives), rendezvous)
                assert found.faults == (), (tree, collective, sends, receives)
                yield found.states


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize(("ranks", "segments"), [(2, 4), (3, 3), (4, 2)])
def test_every_order_ends_and_sends_once(ranks, segments, rendezvous):
    """G1, the smaller part; the larger one is a row of benchmarks/collective_planners."""
    assert sum(all_orders(ranks, segments, rendezvous)) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "segments"), [(3, 4), (4, 3)])
def test_every_order_of_more_segments(ranks, segments):
    """G1."""
    assert max(all_orders(ranks, segments, True)) > 1000


FORK = Tree.of([None, 0, 1, 1])


def test_published_reduce_can_wait_for_ever():
    """A rank with two children completes segments that its parent does not expect, and its window is full of them."""
    windows = Windows(sends=2, receives=2)
    stuck = explored(FORK, "reduce", 4, windows, rendezvous=True, guarded=False)
    assert "deadlock: ranks 0, 1 wait for ever" in stuck.faults[0]
    assert explored(FORK, "reduce", 4, windows, rendezvous=True).faults == ()


def test_windows_must_be_alike():
    """A parent that may receive further ahead than its child passes on what the child does not expect."""
    rules = [
        Broadcast(None, (1,), 3, Windows(2, 2)),
        Reduced(0, (2,), 3, Windows(2, 2)),
        Broadcast(1, (), 3, Windows(2, 1)),
    ]
    assert "deadlock" in explore(rules, "down", 3).faults[0]


class Reduced(Broadcast):
    """Has one send under way at most."""

    def received(self, state, peer, segment):
        state, acts = super().received(state, peer, segment)
        under_way = state.issued[0] - 1 - state.sent if self.children else 0
        if under_way < 1:
            return state, acts
        return state._replace(issued=(state.issued[0] - 1,)), [a for a in acts if isinstance(a, Post)]


class Forgets(Broadcast):
    """Does not pass on what comes out of order."""

    def received(self, state, peer, segment):
        state, acts = super().received(state, peer, segment)
        kept = [a for a in acts if isinstance(a, Post) or a.segment >= len(state.order) - 1]
        return state, kept


class Repeats(Broadcast):
    def sent(self, state, peer, segment):
        state, acts = super().sent(state, peer, segment)
        return state, [*acts, Send(peer, segment)]


@pytest.mark.parametrize(("wrong", "kind"), [(Forgets, "deadlock"), (Repeats, "sent twice")])
def test_wrong_rules_are_found(wrong, kind):
    tree = chain(3)
    rules = [
        wrong(parent, children, 3, Windows(2, 2))
        for parent, children in zip(tree.parents, tree.children, strict=True)
    ]
    assert any(kind in fault for fault in explore(rules, "down", 3).faults)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_two_ranks_without_noise(collective, synchronous):
    """One message after the other: event-driven back to back; else with latency and two events between them."""
    rules = rules_of(chain(2), collective, 8, synchronous=synchronous)
    wait = 2e-6 + 1e-6
    expected = 8 * SEGMENT_S + (8 if synchronous else 1) * wait
    assert mean_s(rules, 1) == pytest.approx(expected, rel=1e-3)


def test_root_of_a_binomial_tree_is_the_bottleneck():
    plain = mean_s(rules_of(binomial(8), "broadcast", 64), 10)
    assert plain == pytest.approx(3 * 64 * SEGMENT_S, rel=0.03)


def slowdowns(tree, rounds, noise, collective="broadcast"):
    found = []
    for synchronous in (True, False):
        rules = rules_of(tree, collective, 64, synchronous=synchronous)
        found.append(mean_s(rules, rounds, noise=noise) / mean_s(rules, 3) - 1)
    return found


def test_noise_slows_event_driven_trees_less():
    """G2: at most 0.7 of the slowdown of synchronous ones."""
    synchronous, event_driven = slowdowns(binomial(8), 30, Noise(longest_s=0.01))
    assert event_driven <= 0.7 * synchronous
    assert synchronous > 0.1


@pytest.mark.slow
def test_noise_on_many_ranks():
    """G2: at most 0.3 on 32 ranks."""
    synchronous, event_driven = slowdowns(binomial(32), 20, Noise(longest_s=0.01))
    assert event_driven <= 0.3 * synchronous


def test_interruptions_must_not_overlap():
    with pytest.raises(InputError, match="one at a time"):
        mean_s(rules_of(chain(2), "broadcast", 2), 1, noise=Noise(longest_s=0.2))
