"""Dead, silent and disagreeing peers: every survivor hears of it, with the edge, within the timeout."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from tests.runtime.collective.ranks import on_ranks
from wirewise.collective.builders import build
from wirewise.errors import PeerError
from wirewise.runtime.collective import REDUCTIONS, connect
from wirewise.runtime.collective.engine import Engine
from wirewise.runtime.collective.work import Work


def message(group, action):
    with pytest.raises(PeerError) as caught:
        action(group)
    return str(caught.value)


def test_a_rank_that_leaves_is_named_by_all():
    def run(group):
        if group.rank == 2:
            group.close()
            return None
        first = message(group, lambda g: g.all_reduce(torch.ones(100_000), program=chain))
        again = message(group, lambda g: g.all_reduce(torch.ones(5)))
        return first, again

    chain = build("all_reduce", "ring", 4)
    found = [r for r in on_ranks(4, run) if r]
    for first, again in found:
        assert "2" in first.split(" of ")[0], first
        assert "Look at the log of rank 2" in first
        assert again == first


def test_a_silent_rank_is_named_by_all_within_the_timeout():
    """Rank 3 waits for rank 2, which waits for rank 1, which never calls: 1 is the one that is named."""

    def run(group):
        if group.rank == 1:
            # Far longer than the timeout: the others do not end because this one leaves.
            assert ended.wait(30)
            return None
        found = message(group, lambda g: g.broadcast(torch.ones(10), program=chain))
        with lock:
            left.discard(group.rank)
            if not left:
                ended.set()
        return found

    chain = build("broadcast", "chain", 4)
    ended, lock, left = threading.Event(), threading.Lock(), {2, 3}

    def without_the_root(group):
        if group.rank == 0:
            group.broadcast(torch.ones(10), program=chain)
            return None
        return run(group)

    # Within half of the timeout rank 2 must answer rank 3, or it is the one that is silent.
    for found in on_ranks(4, without_the_root, timeout_s=4.0)[2:]:
        assert found.startswith("edge 1->2"), found
        assert "sent nothing for 4 s" in found


def test_a_rank_that_only_sends_hears_that_the_others_failed():
    def run(group):
        if group.rank == 2:
            group.close()
        elif group.rank == 0:
            message(group, lambda g: g.all_reduce(torch.ones(5), program=ring))
            failed.set()
        else:
            assert failed.wait(30)
            return message(group, lambda g: g.gather(None, torch.ones(5), 0))

    ring, failed = build("all_reduce", "ring", 3), threading.Event()
    assert "rank 2" in on_ranks(3, run)[1]


def test_a_late_rank_is_waited_for():
    def run(group):
        if group.rank == 1:
            # The others ask after a quarter and after half of the timeout whether this one is there.
            time.sleep(2.4)
        tensor = torch.ones(10)
        group.all_reduce(tensor)
        return tensor[0].item()

    assert on_ranks(3, run, timeout_s=4.0) == [3.0] * 3


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_ranks_that_disagree_are_told(count):
    def run(group):
        size = count + (group.rank == 0)
        return message(group, lambda g: g.all_reduce(torch.ones(size)))

    assert any("all ranks call the same operations in the same order" in m for m in on_ranks(3, run))


@pytest.mark.parametrize("count", [998, 200_000])
def test_a_payload_that_was_refused_is_not_read_as_a_header(count):
    """Ranks that met it asked the allocator for exabytes, and hid why."""

    def run(group):
        op, size = ("sum", 1000) if group.rank else ("product", count)
        try:
            return message(group, lambda g: g.all_reduce(torch.full((size,), 2.0), op=op))
        finally:
            # The others write to a closed connection, and look whether it says why.
            group.close()

    for _ in range(10):
        assert not [m for m in on_ranks(4, run) if "alloc" in m or "failed in an operation" in m]


def test_frames_of_strangers_are_refused():
    def run(group):
        if group.rank == 0:
            group._engine._links[1].socket.sendall(b"\xff" * 64)
            return ""
        return message(group, lambda g: g.all_reduce(torch.ones(4)))

    assert "frame of kind 255" in on_ranks(2, run, timeout_s=3.0)[1]


@pytest.mark.parametrize("async_op", [False, True])
def test_a_barrier_ends_after_what_was_started_before(async_op):
    def run(group):
        sums = [torch.ones(300_000) for _ in range(3)]
        works = [group.all_reduce(tensor, async_op=True) for tensor in sums]
        if async_op:
            assert set(group.in_flight()) <= set(works)
            for work in [group.barrier(async_op=True), *works]:
                work.wait()
        else:
            group.barrier()
        return all(work.is_completed() for work in works) and not group.in_flight()

    assert all(on_ranks(3, run))


def test_programs_that_differ_are_told():
    def run(group):
        own = build("all_reduce", "ring" if group.rank else "recursive_doubling", 4)
        return message(group, lambda g: g.all_reduce(torch.ones(8), program=own))

    assert all("one of another program" in m for m in on_ranks(4, run))


def test_ranks_that_wait_for_each_other_in_unlike_operations_are_told_well_before_the_timeout():
    def run(group):
        call = group.broadcast if group.rank == 1 else group.all_reduce
        return message(group, lambda _: call(torch.ones(1000)))

    began_s = time.monotonic()
    texts = on_ranks(3, run, timeout_s=60.0)
    assert time.monotonic() - began_s < 30.0
    assert all("all_reduce 1 " in text and "broadcast 1 " in text and "same order" in text for text in texts)


@pytest.mark.parametrize("follows", ["all_reduce", "broadcast", "barrier"])
def test_unlike_roots_are_told_by_the_next_operation(follows):
    """A root has ended as soon as all is sent, and hears of nobody."""

    def run(group):
        def calls(_):
            group.broadcast(torch.ones(1000), root=int(group.rank == 1))
            if follows == "barrier":
                group.barrier()
            else:
                getattr(group, follows)(torch.ones(1000))
            # Ranks that only send may be through once more before they hear of it.
            group.barrier()

        return message(group, calls)

    assert all("same order" in text for text in on_ranks(3, run))


def test_an_operation_that_one_rank_left_out_is_found_by_the_next():
    def run(group):
        def calls(_):
            if group.rank != 2:
                group.broadcast(torch.ones(10))
            for _ in range(3):
                group.all_reduce(torch.ones(10))

        return message(group, calls)

    assert all("same order" in text for text in on_ranks(3, run))


@pytest.mark.parametrize("depth", [1, 4])
def test_callbacks_inside_callbacks(depth):
    def deeper(group, tensor, left):
        future = group.all_reduce(tensor, async_op=True).get_future()
        if not left:
            return future.wait()
        return future.then(lambda _: deeper(group, tensor, left - 1)).wait()

    def run(group):
        tensor = torch.ones(10)
        deeper(group, tensor, depth)
        return float(tensor[0])

    assert on_ranks(3, run) == [3.0 ** (depth + 1)] * 3


def test_a_callback_may_wait_for_what_was_started_before():
    def run(group):
        first, second = torch.ones(10), torch.ones(500_000)
        work = group.all_reduce(first, async_op=True)
        future = work.get_future()
        later = group.all_reduce(second, async_op=True)
        future.then(lambda _: later.get_future().wait()).wait()
        return float(second[-1])

    assert on_ranks(3, run) == [3.0] * 3


def test_a_callback_may_wait_for_what_ended_at_the_same_time():
    engine = Engine(0, {}, timeout_s=5.0)
    works = [Work(name, engine, [torch.ones(1)]) for name in ("first", "second")]
    told = threading.Event()
    works[0].get_future().then(lambda _: (works[1].get_future().wait(), told.set()))
    execution = SimpleNamespace(memory=SimpleNamespace(finish=lambda: None))
    engine._ended.extend((execution, work, None) for work in works)
    engine._run_in_background()
    try:
        assert told.wait(30.0)
    finally:
        engine.close()


def test_a_group_is_closed_while_a_callback_waits():
    def run(group):
        if group.rank:
            time.sleep(0.5)
            return group.close()
        future = group.all_reduce(torch.ones(10), async_op=True).get_future()
        told = future.then(lambda done: done.wait())
        time.sleep(0.1)
        group.close()
        with pytest.raises((RuntimeError, PeerError)):
            told.wait()
        return None

    on_ranks(2, run)


def test_who_begins_to_wait_while_the_group_is_closed_is_told_so():
    over = threading.Event()

    def run(group):
        if group.rank:
            assert over.wait(30)
            return None
        work, settle, found = group.all_reduce(torch.ones(10), async_op=True), group._engine._settle, []

        def waits():
            try:
                work.wait()
            except Exception as error:
                found.append(error)

        waiter = threading.Thread(target=waits)

        def settle_late():
            # The connections are closed, and nobody knows that the operation has failed.
            if threading.current_thread() is not waiter and not waiter.is_alive():
                waiter.start()
                waiter.join(0.5)
                group._engine._settle = settle
            settle()

        group._engine._settle = settle_late
        group.close()
        waiter.join(30)
        over.set()
        return found[0]

    error = on_ranks(2, run)[0]
    assert isinstance(error, PeerError) and "the group was closed" in str(error), error


def test_the_future_and_the_work_tell_of_an_error():
    def run(group):
        if group.rank == 0:
            group.close()
            return
        work = group.all_reduce(torch.ones(7), async_op=True)
        future = work.get_future()
        with pytest.raises(PeerError, match="edge 0->1"):
            work.wait()
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), PeerError)
        with pytest.raises(PeerError, match="edge 0->1"):
            future.wait()

    on_ranks(2, run)


def test_a_wait_can_be_cut_short():
    cut_short = threading.Event()

    def run(group):
        if group.rank == 0:
            assert cut_short.wait(15)
        tensor = torch.ones(3)
        work = group.all_reduce(tensor, async_op=True)
        if group.rank == 1:
            with pytest.raises(PeerError, match=r"had not ended after 0.05 s; it goes on"):
                work.wait(0.05)
            cut_short.set()
        assert work.wait()
        assert work.result()[0] is tensor
        return tensor.tolist()

    assert on_ranks(2, run) == [[2.0] * 3] * 2


def test_a_rank_that_never_appears_is_named():
    import torch.distributed as dist

    with pytest.raises(PeerError, match="rank 0 waited for a connection with rank 1"):
        connect(dist.HashStore(), 0, 2, timeout_s=0.3, interface="lo")


@pytest.mark.parametrize("async_op", [False, True])
def test_an_error_of_one_rank_reaches_all(async_op, monkeypatch):
    """Whatever a rank raises while it takes messages in."""

    def run(group):
        tensor = torch.ones(20)
        if group.rank == 1:
            monkeypatch.setitem(REDUCTIONS, "product", broken)

        def some(group):
            # A rank that has all it needs ends the first one well.
            for _ in range(3):
                group.all_reduce(tensor, "product", async_op=async_op).wait()

        return message(group, some)

    def broken(own, other):
        raise ValueError("no more memory")

    # The group asks once a process whether torch has the operation; the ranks of this test share one process.
    on_ranks(3, lambda group: group.all_reduce(torch.ones(3), "product"))
    for found in on_ranks(3, run, timeout_s=5.0):
        assert "no more memory" in found
