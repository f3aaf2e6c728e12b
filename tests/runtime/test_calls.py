"""Ranks whose calls have come apart, or one of which left with an error, learn of it; slow ones are left in peace."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.harness.processes import run_ranks_as_processes
from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import PeerError
from wirewise.runtime import calls
from wirewise.runtime.calls import CallLog
from wirewise.runtime.transport import Transport

LONG_S = 10.0


def logs(ranks: int = 2) -> list[CallLog]:
    store = dist.HashStore()
    return [CallLog(rank, [r for r in range(ranks) if r != rank], store, "test") for rank in range(ranks)]


def make(log: CallLog, *names: str) -> None:
    for name in names:
        log.note(name)


def test_slow_ranks_are_at_no_fault_however_far_apart() -> None:
    ahead, behind = logs()
    make(behind, "forward0", "forward1")
    assert behind.fault(LONG_S) == ""
    make(ahead, "forward0", "forward1", *(f"exchange {n}" for n in range(200)))
    assert ahead.fault(LONG_S) == behind.fault(LONG_S) == ""


def test_calls_that_differ_are_told_with_the_places_of_both() -> None:
    one, other = logs()
    make(one, "forward0", "forward1", "the loss")
    make(other, "forward0", "forward0 again")
    assert one.fault(LONG_S) == ""
    assert "rank 1 waited in forward0 again, and rank 0 in the loss: all of them live" in other.fault(LONG_S)
    assert "rank 0 waited in the loss, and rank 1 in forward0 again: all of them live" in one.fault(LONG_S)


def test_nothing_is_looked_at_in_a_short_wait() -> None:
    one, other = logs()
    make(one, "a")
    make(other, "b")
    assert one.fault(LONG_S) == one.fault(0.5) == other.fault(0.5) == ""
    assert other.fault(LONG_S)


def test_a_rank_that_left_with_an_error_has_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(calls.time, "monotonic", lambda: now[0])
    one, other = logs()
    make(one, "forward0")
    make(other, "forward0")
    other.leave(ValueError("own error"), "the forward of the model")
    assert one.fault(LONG_S) == ""
    now[0] = 2.9
    assert one.fault(LONG_S) == ""
    now[0] = 3.1
    assert "rank 1 left the forward of the model with ValueError: own error." in one.fault(LONG_S)
    # It is back.
    make(other, "forward1")
    assert one.fault(LONG_S) == ""


def test_two_logs_of_one_store_are_apart() -> None:
    store = dist.HashStore()
    first, second = CallLog(0, [1], store, "test"), CallLog(0, [1], store, "test")
    peer = CallLog(1, [0], store, "test")
    make(first, "a")
    make(second, "b")
    make(peer, "a")
    assert first.fault(LONG_S) == second.fault(LONG_S) == peer.fault(LONG_S) == ""


@pytest.mark.slow
@pytest.mark.parametrize("apart", ["sum", "message", "error"])
def test_ranks_that_come_apart_do_not_wait_for_the_timeout(apart: str) -> None:
    """All three ranks name the one that went another way, far within the 100 s that a message may take."""

    def body(rank: int, group: Any, store: Any) -> str:
        transport = Transport(group, timeout_s=100, store=store, calls="test")
        transport.all_reduce(torch.zeros(1), "the start")
        if rank == 1 and apart == "error":
            transport.leave(ValueError("own error"), "the step")
            while not store.check(["told/0", "told/2"]):
                time.sleep(0.05)
            return ""
        what = f"the sum of step {4 if rank == 1 else 3}"
        with pytest.raises(PeerError) as caught:
            if apart == "message":
                peers = {peer: torch.empty(8) for peer in transport.peers}
                list(transport.open(what, 5 if rank == 1 else 4, peers).arrivals())
            else:
                # Of another rank's sum nothing is heard: it is a barrier, which gloo does by messages.
                transport.all_reduce(torch.zeros(3), what) if rank != 1 else transport.barrier(what)
        store.set(f"told/{rank}", "1")
        return str(caught.value)

    told = run_ranks_as_threads(3, body, timeout_s=60)
    for rank in (0, 2):
        other = (
            "rank 1 left the step with ValueError: own error"
            if apart == "error"
            else "rank 1 in the sum of step 4"
        )
        assert f"rank {rank} waited in the sum of step 3, and {other}" in told[rank]


def test_a_collective_of_the_script_that_a_peer_never_comes_to_is_told_on_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(calls.time, "monotonic", lambda: now[0])
    one, other = logs()
    make(one, "forward0")
    make(other, "forward0", "forward1")
    assert one.explain_script_deadlock("barrier of the script", LONG_S) == other.fault(LONG_S) == ""
    assert one.explain_script_deadlock("barrier of the script", LONG_S) == ""
    now[0] += 4.0
    expected = "rank 0 waited in barrier of the script, and rank 1 in forward1"
    assert expected in one.explain_script_deadlock("barrier of the script", LONG_S)
    assert "rank 1 waited in forward1, and rank 0 in barrier of the script" in other.fault(LONG_S)


def test_slow_ranks_and_those_that_left_together_may_wait_in_a_collective_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(calls.time, "monotonic", lambda: now[0])
    one, other = logs()
    make(one, "forward0")
    make(other, "forward0")
    for leaves, told in ((False, ""), (True, "rank 1 left forward0 with ValueError: own")):
        if leaves:
            other.leave(ValueError("own"), "forward0")
        one.explain_script_deadlock("barrier of the script", LONG_S)
        now[0] += 60.0
        assert told in one.explain_script_deadlock("barrier of the script", LONG_S)
        assert bool(told) == bool(one.explain_script_deadlock("barrier of the script", LONG_S))
        one.end_script_call()
    one.leave(ValueError("own"), "forward0")
    one.explain_script_deadlock("barrier of the script", LONG_S)
    now[0] += 60.0
    assert one.explain_script_deadlock("barrier of the script", LONG_S) == ""


def waits_in_a_barrier(rank: int, first: int) -> str:
    """Rank 1 goes on to an exchange, while rank 0 is in a barrier of its own; rank `first` notices it first."""
    calls._WAITS_S, calls._LEFT_S = 0.5, 0.5 if rank == first else 4.0
    transport = Transport(
        dist.group.WORLD, timeout_s=20, store=dist.distributed_c10d._get_default_store(), calls="test"
    )
    transport.all_reduce(torch.zeros(1), "a first exchange")
    dist.barrier()
    try:
        dist.barrier() if rank == 0 else transport.all_reduce(torch.zeros(1), "a second exchange")
    except PeerError as error:
        return str(error)
    return "no error"


@pytest.mark.dist
@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (0, "rank 0 waited in barrier of the script, and rank 1 in a second exchange"),
        (1, "rank 1 waited in a second exchange, and rank 0 in barrier of the script"),
    ],
)
def test_a_barrier_of_the_script_ends_by_name_whichever_rank_notices_first(first: int, expected: str) -> None:
    # The ranks destroy their group afterwards, which waits for no thread that is in a collective still.
    told = run_ranks_as_processes(2, waits_in_a_barrier, first)
    assert expected in told[first]
    assert "rank 0" in told[1] and "no error" not in told
