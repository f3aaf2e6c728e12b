"""Deadlocks: which orders of work get stuck, with channels of one and of eight messages."""

import random

import pytest

from tests.collective.random_programs import random_program
from wirewise.collective import Program, Transfer, check, faults
from wirewise.collective.builders import BUILDERS, build
from wirewise.collective.fifo import SegmentOp, deadlocked_messages
from wirewise.errors import ProgramError


def swap(messages: int) -> Program:
    """Two ranks exchange their blocks in so many parts."""
    return Program(
        name="swap", collective="all_gather", ranks=2, chunks=2 * messages,
        transfers=tuple(Transfer(c, c // messages, 1 - c // messages, c % messages) for c in range(2 * messages)),
    )  # fmt: skip


def workers(program, key, by_channel=False):
    """One worker a rank, or one for each end of a channel; acts in the order of `key(segment, step, sends, pair)`."""
    found = {}
    for number, m in enumerate(program.messages()):
        for segment in range(program.segments):
            for sends in (True, False):
                rank = m.source if sends else m.target
                owner = (m.source, m.target, sends) if by_channel else rank
                acts = found.setdefault(owner, [])
                acts.append(
                    (key(segment, m.step, sends, (m.source, m.target)), SegmentOp(number, sends, segment))
                )
    return [[act for _, act in sorted(acts)] for acts in found.values()]


def in_steps(segment, step, sends, pair):
    return segment, step, not sends, pair


def all_sends_first(segment, step, sends, pair):
    return not sends, segment, step, pair


def naive(program, orders, capacity):
    """Run heads of workers in turn, looking at everything each time; whether all get done."""
    messages = program.messages()
    orders, sent, taken, queues = [list(o) for o in orders], set(), set(), {}

    def writes_before(cell, step, segment):
        return all(
            (n, segment) in taken
            for n, m in enumerate(messages) for t in m.transfers
            if (t.target, t.chunk) == cell and t.step < step
        )  # fmt: skip

    def reads_until(cell, step, segment):
        return all(
            (n, segment) in sent
            for n, m in enumerate(messages) for t in m.transfers
            if (t.source, t.chunk) == cell and t.step <= step
        )  # fmt: skip

    def can_run(act):
        m = messages[act.message]
        queue = queues.setdefault((m.source, m.target), [])
        if act.sends:
            ready = all(writes_before((t.source, t.chunk), m.step, act.segment) for t in m.transfers)
            return ready and len(queue) < capacity
        cells = [(t.target, t.chunk) for t in m.transfers]
        return (
            queue[:1] == [(act.message, act.segment)]
            and all(writes_before(c, m.step, act.segment) and reads_until(c, m.step, act.segment) for c in cells)
        )  # fmt: skip

    while True:
        movable = [o for o in orders if o and can_run(o[0])]
        if not movable:
            return not any(orders)
        act = movable[0].pop(0)
        m = messages[act.message]
        if act.sends:
            queues[m.source, m.target].append((act.message, act.segment))
            sent.add((act.message, act.segment))
        else:
            queues[m.source, m.target].pop(0)
            taken.add((act.message, act.segment))


@pytest.mark.parametrize("capacity", [1, 8])
def test_two_ranks_that_send_all_before_they_receive(capacity):
    """D2: as many messages as the channels hold pass; one more and both ranks wait for ever."""
    fits, one_more = swap(capacity), swap(capacity + 1)
    check(fits, fifo=capacity, workers=workers(fits, all_sends_first))
    with pytest.raises(
        ProgramError, match=f"deadlock: rank 0 waits for ever to send its message of step {capacity}"
    ):
        check(one_more, fifo=capacity, workers=workers(one_more, all_sends_first))
    check(one_more, fifo=capacity + 1, workers=workers(one_more, all_sends_first))
    check(one_more, fifo=None, workers=workers(one_more, all_sends_first))


@pytest.mark.parametrize("capacity", [1, 8])
def test_two_ranks_that_swap_in_opposite_orders(capacity):
    """Both want to receive first what the other sends last."""
    program = swap(1)
    receive_first = [[SegmentOp(1, False), SegmentOp(0, True)], [SegmentOp(0, False), SegmentOp(1, True)]]
    lines = deadlocked_messages(program, receive_first, capacity)
    assert lines == [
        "rank 0 waits for ever for rank 1 to send its message of step 0 (segment 0)",
        "rank 1 waits for ever for rank 0 to send its message of step 0 (segment 0)",
    ]
    assert not deadlocked_messages(
        program,
        [[SegmentOp(0, True), SegmentOp(1, False)], [SegmentOp(0, False), SegmentOp(1, True)]],
        capacity,
    )


def test_ends_of_a_channel_in_different_orders():
    program = swap(2)
    orders = [[SegmentOp(0, True), SegmentOp(2, True), SegmentOp(1, False), SegmentOp(3, False)],
              [SegmentOp(2, False), SegmentOp(0, False), SegmentOp(1, True), SegmentOp(3, True)]]  # fmt: skip
    assert deadlocked_messages(program, orders, 8) == [
        "rank 1 expects the message of step 1 (segment 0) from rank 0, which sends that of step 0 (segment 0) first"
    ]


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm"), BUILDERS)
def test_by_step_nothing_gets_stuck(collective, algorithm):
    for ranks in (2, 4, 8):
        program = build(
            collective, algorithm, ranks, segments=3, hosts=[range(ranks // 2), range(ranks // 2, ranks)]
        )
        assert not deadlocked_messages(program, workers(program, in_steps), 1)
        assert not deadlocked_messages(program, workers(program, in_steps, by_channel=True), 1)


def test_random_orders_as_run_one_by_one():
    rng = random.Random(3)
    verdicts = {True: 0, False: 0}
    for _ in range(300):
        program = random_program(rng)
        jitter = rng.choice((0.5, 1.5, 4.0))
        late = {}

        def key(segment, step, sends, pair, jitter=jitter, late=late):
            # Both ends of a channel keep one order, as late as that of the message.
            return step + late.setdefault((segment, step, pair), rng.random() * jitter), not sends, pair

        orders = workers(program, key, by_channel=rng.random() < 0.3)
        capacity = rng.choice((1, 2, 8))
        fine = naive(program, orders, capacity)
        assert (not deadlocked_messages(program, orders, capacity)) == fine
        verdicts[fine] += 1
    assert min(verdicts.values()) > 30, verdicts


def test_many_writes_of_one_cell_take_linear_memory():
    """20 000 messages into and out of the same cells: pairs of them would be 10^8 entries."""
    count = 20_000
    program = Program(
        name="ping-pong", collective="broadcast", ranks=2, chunks=1,
        transfers=tuple(Transfer(0, step % 2, 1 - step % 2, step) for step in range(count)),
    )  # fmt: skip
    assert not list(faults(program, fifo=1, workers=workers(program, in_steps)))


def test_what_is_no_order():
    program = swap(2)
    right = workers(program, in_steps)
    with pytest.raises(ProgramError, match="leave out 1 of 8 acts and run 0"):
        deadlocked_messages(program, [right[0][1:], right[1]], 1)
    with pytest.raises(ProgramError, match="run 1 more than once"):
        deadlocked_messages(program, [right[0] + right[0][:1], right[1]], 1)
    with pytest.raises(ProgramError, match="messages below 4"):
        deadlocked_messages(program, [[SegmentOp(4, True)]], 1)
    with pytest.raises(ProgramError, match="two workers send on the channel from rank 0 to 1"):
        deadlocked_messages(program, [right[0][:1], right[0][1:], right[1]], 1)
    with pytest.raises(ProgramError, match="channels of 0 messages"):
        deadlocked_messages(program, right, 0)
