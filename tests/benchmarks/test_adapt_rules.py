"""The rules of event-driven trees, one rank at a time; all ranks together: `tests/sim/test_adapt.py`."""

from benchmarks.collective_planners.adapt_rules import Add, Broadcast, Post, Reduce, Send, Windows


def test_root_fills_its_window_and_serves_each_child_at_its_own_pace():
    root = Broadcast(None, (1, 2), 4, Windows(sends=2, receives=2))
    state, acts = root.start()
    assert acts == [Send(1, 0), Send(2, 0), Send(1, 1), Send(2, 1)]
    for sent, following in ((0, 2), (1, 3)):
        state, acts = root.sent(state, 1, sent)
        assert acts == [Send(1, following)]
    state, acts = root.sent(state, 1, 2)
    assert acts == [] and state.issued == (4, 2)


def test_segments_are_passed_on_as_they_come():
    inner = Broadcast(0, (3, 5), 5, Windows(sends=2, receives=3))
    state, acts = inner.start()
    assert acts == [Post(0, 0), Post(0, 1), Post(0, 2)]
    state, acts = inner.received(state, 0, 2)
    assert acts == [Post(0, 3), Send(3, 2), Send(5, 2)]
    state, acts = inner.received(state, 0, 0)
    assert acts == [Post(0, 4), Send(3, 0), Send(5, 0)]
    state, acts = inner.received(state, 0, 1)
    assert Post(0, 5) not in acts
    assert not inner.done(state)


def test_sums_go_up_in_any_order():
    inner = Reduce(0, (2, 3), 3, Windows(sends=1, receives=3))
    state, acts = inner.start()
    assert [a for a in acts if isinstance(a, Post)] == [Post(c, s) for s in range(3) for c in (2, 3)]
    for child, segment in ((2, 1), (2, 0)):
        state, acts = inner.received(state, child, segment)
        assert acts == [Add(child, segment)]
    state, acts = inner.received(state, 3, 1)
    assert acts == [Add(3, 1), Send(0, 1)]
    state, acts = inner.received(state, 3, 0)
    assert acts == [Add(3, 0)], "the window is full"
    state, acts = inner.sent(state, 0, 1)
    assert acts == [Send(0, 0)]


def test_fixed_order_of_additions():
    inner = Reduce(0, (2, 3, 4), 1, deterministic=True)
    state, _ = inner.start()
    state, acts = inner.received(state, 3, 0)
    assert acts == []
    state, acts = inner.received(state, 2, 0)
    assert acts == [Add(2, 0), Add(3, 0)]
    _, acts = inner.received(state, 4, 0)
    assert acts == [Add(4, 0), Send(0, 0)]


def test_guard_keeps_back_what_the_parent_may_not_expect():
    for guarded in (True, False):
        inner = Reduce(0, (2,), 4, Windows(sends=2, receives=2), guarded=guarded)
        state, _ = inner.start()
        _, acts = inner.received(state, 2, 2)
        assert (Send(0, 2) in acts) is not guarded
