"""Orders of chunks in a time of the test's own: shares, and flows that end when fluid ones would."""

import numpy as np
import pytest

from tests.sim.flows.helpers import links
from wirewise.errors import InputError
from wirewise.runtime.flows.orders import BandwidthShares, EqualShares, GrantLedger, SendQueue, TokenBucket
from wirewise.sim.flows import FlowSimulator
from wirewise.trace import Flow, TaskSet, TrainingTask

CHUNK, RATE = 1000, 1e5
STEP_S = 0.0005


def test_shares_follow_the_number_of_flows():
    """Rates at 100 bytes a second: a quarter second alone, a quarter beside another flow, then alone."""
    shares = EqualShares(100.0, 10)
    shares.begin(1, 10.0)
    assert shares.free_s(1, 50) == pytest.approx(10.5)
    shares.begin(2, 10.25)
    assert shares.free_s(1, 50) == pytest.approx(10.75)
    shares.end(2, 10.5)
    assert shares.free_s(1, 50) == pytest.approx(10.625)


def test_a_late_flow_makes_up_for_no_more_than_is_saved():
    shares = EqualShares(100.0, 10)
    shares.begin(1, 0.0)
    shares.take(1, 50, 20.0)
    assert shares.free_s(1, 1) == pytest.approx(20.0 + (50 - 10 + 1) / 100)


def test_without_shares_a_flow_may_always_go():
    shares = BandwidthShares()
    shares.begin(1, 5.0)
    shares.take(1, 10**9, 5.0)
    assert shares.free_s(1, 10**9) == 0.0


@pytest.mark.parametrize(("order", "expected"), [("oes", 0.5), ("maxmin", 1.0)])
def test_what_a_flow_leaves_of_its_share_is_lost_under_oes_only(order, expected):
    """One of two hosts never sends what it was granted."""
    found, sent = GrantLedger(TokenBucket(RATE, CHUNK), order), 0
    for host in (1, 2):
        found.announce(host, host, 10**9, iteration=0, now_s=0.0)
    for now_s in np.arange(0.0, 5.0, STEP_S):
        while (grant := found.next(now_s)) is not None:
            if grant[0] == 1:
                sent += grant[2]
                found.arrived(*grant, now_s)
    assert sent / (5.0 * RATE) == pytest.approx(expected, abs=0.03)


def test_a_flow_that_owes_does_not_hold_up_another_of_its_host_under_oes():
    found = GrantLedger(TokenBucket(RATE, CHUNK), "oes")
    for op in (1, 2):
        found.announce(7, op, 9 * CHUNK, iteration=0, now_s=0.0)
    granted = {1: 0, 2: 0}
    for now_s in np.arange(0.0, 1.0, STEP_S):
        while (grant := found.next(now_s)) is not None:
            granted[grant[1]] += grant[2]
            if grant[1] == 2:
                found.arrived(*grant, now_s)
    assert granted == {1: 2 * CHUNK, 2: 9 * CHUNK}


def carried(order, pairs, sizes, iterations, rates):
    """When each flow ends if words and bytes travel in no time, [flows]."""
    boxes = [SendQueue(TokenBucket(rate, CHUNK), order) for rate in rates]
    doors = [GrantLedger(TokenBucket(rate, CHUNK), order) for rate in rates]
    for op, (source, target) in enumerate(pairs):
        boxes[source].add(target, op, sizes[op], iterations[op], 0.0)
        doors[target].announce(source, op, sizes[op], iterations[op], 0.0)
    left, ends, now_s = list(sizes), np.zeros(len(pairs)), 0.0
    while any(left):
        for door in doors:
            while (grant := door.next(now_s)) is not None:
                boxes[grant[0]].grant(*grant[1:])
        for source, box in enumerate(boxes):
            while (piece := box.next(range(len(rates)), now_s)) is not None:
                target, op, size = piece
                box.bucket.take(size, now_s)
                doors[target].arrived(source, op, size, now_s)
                left[op] -= size
                ends[op] = now_s
        now_s += STEP_S
        assert now_s < 60.0
    return ends


@pytest.mark.sweep
@pytest.mark.parametrize(("order", "most"), [("iter", 0.1), ("oes", 0.05), ("maxmin", 0.15)])
@pytest.mark.parametrize("seed", range(3))
def test_flows_in_chunks_end_when_fluid_ones_would(order, most, seed):
    """Fetches of three hosts' samplers from three stores, of two iterations.

    All are ready at once, where chunks under `fifo` take turns of their own.
    """
    random, hosts = np.random.default_rng(seed), range(3)
    rates = random.choice([RATE, 4 * RATE], 3)
    pairs = [(a, b) for a in hosts for b in hosts if a != b]
    sizes = random.integers(10 * CHUNK, 60 * CHUNK, (len(pairs), 2))
    tasks = [TrainingTask(name=f"store{h}", kind="store") for h in hosts]
    for h in hosts:
        tasks.append(TrainingTask(name=f"sampler{h}", kind="sampler", worker=f"worker{h}"))
        tasks.append(TrainingTask(name=f"worker{h}", kind="worker"))
    flows = [
        Flow(source=f"store{a}", target=f"sampler{b}", size_bytes=tuple(map(float, both)))
        for (a, b), both in zip(pairs, sizes, strict=True)
    ]
    simulator = FlowSimulator(TaskSet(iterations=2, tasks=tuple(tasks), flows=tuple(flows)), links(rates))
    fluid = simulator.run([0, 1, 2, 0, 0, 1, 1, 2, 2], order).end_s[2 * len(tasks) :]
    found = carried(
        order, [pair for pair in pairs for _ in range(2)], sizes.ravel().tolist(), [0, 1] * len(pairs), rates
    )
    assert found.max() == pytest.approx(fluid.max(), rel=0.05)
    assert np.abs(found - fluid).max() < most * fluid.max()


def grants(order, rate=1e5):
    return GrantLedger(TokenBucket(rate, CHUNK), order)


def granted(found, rounds, now_s=100.0):
    """Ops in the order in which they get chunks, all of which arrive at once."""
    ops = []
    for number in range(rounds):
        grant = found.next(now_s + number)
        if grant is not None:
            ops.append(grant[1])
            found.arrived(*grant, now_s + number)
    return ops


@pytest.mark.parametrize(
    ("order", "expected"),
    [("iter", [3, 3, 1, 2, 1, 2]), ("fifo", [1, 1, 2, 2, 3, 3]), ("maxmin", [1, 2, 3, 1, 2, 3])],
)
def test_who_is_granted_first(order, expected):
    """Ops 1 and 2 of iteration 5, then op 3 of iteration 4, of two chunks each."""
    found = grants(order)
    for op, iteration in ((1, 5), (2, 5), (3, 4)):
        found.announce(op, op, 2 * CHUNK, iteration, now_s=99.0)
    assert granted(found, 8) == expected


def test_a_host_that_owes_two_chunks_gets_no_more_and_others_do():
    found = grants("iter")
    found.announce(1, 1, 9 * CHUNK, iteration=0, now_s=99.0)
    found.announce(2, 2, 9 * CHUNK, iteration=1, now_s=99.0)
    assert [found.next(100.0 + n) for n in range(5)] == [
        (1, 1, CHUNK), (1, 1, CHUNK), (2, 2, CHUNK), (2, 2, CHUNK), None
    ]  # fmt: skip
    assert found.when_s == np.inf
    found.arrived(1, 1, CHUNK, 199.0)
    assert found.next(200.0) == (1, 1, CHUNK)


def test_grants_keep_to_the_rate():
    """Bytes in 1 s after a pause: the rate, and the four chunks that a pause saves."""
    found, total, now_s = grants("iter", rate=1e5), 0, 50.0
    found.announce(1, 1, 10**9, iteration=0, now_s=now_s)
    for _ in range(1000):
        while (grant := found.next(now_s)) is not None:
            total += grant[2]
            found.arrived(*grant, now_s)
        now_s += 0.001
    assert 1e5 <= total <= 1e5 + 5 * CHUNK


def test_chunks_of_slow_interfaces_are_short():
    assert TokenBucket(1e9).chunk_bytes == 256 * 1024
    assert TokenBucket(6.25e6).chunk_bytes == 62_500
    assert TokenBucket(6.25e6, order="oes").chunk_bytes == 25_000
    assert TokenBucket(1e3).chunk_bytes == 16 * 1024
    with pytest.raises(InputError, match="above 0"):
        TokenBucket(0.0)
