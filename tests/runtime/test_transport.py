"""Messages, their order of arrival, and peers that stop responding."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import PeerError
from wirewise.runtime.full_graph import Transport


def test_messages_of_uneven_size_arrive_whole() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        transport = Transport(group, timeout_s=20, store=store)
        for tag in range(3):
            receives = {p: torch.empty(1000 * (p + 1), dtype=torch.uint8) for p in transport.peers}
            sends = {p: torch.full((1000 * (rank + 1),), rank, dtype=torch.uint8) for p in transport.peers}
            transport.exchange("test", tag, sends, receives)
            assert all(bool((r == p).all()) for p, r in receives.items())
        transport.close()

    run_ranks_as_threads(4, body)


def test_arrivals_come_in_the_order_of_landing() -> None:
    first_has_landed = threading.Event()

    def body(rank: int, group: Any, store: Any) -> list[int]:
        transport = Transport(group, timeout_s=20, store=store)
        pending = transport.open("test", 0, {p: torch.empty(8) for p in transport.peers} if rank == 0 else {})
        order: list[int] = []
        if rank == 0:
            for peer in pending.arrivals():
                order.append(peer)
                first_has_landed.set()
        else:
            assert rank == 2 or first_has_landed.wait(15)
            pending.send(0, torch.zeros(8))
            pending.wait_sends()
        transport.close()
        return order

    assert run_ranks_as_threads(3, body)[0] == [2, 1]


def test_empty_messages_are_passed_over() -> None:
    def body(rank: int, group: Any, store: Any) -> list[int]:
        transport = Transport(group, timeout_s=20, store=store)
        empty = torch.empty(0, dtype=torch.uint8)
        pending = transport.open("test", 0, dict.fromkeys(transport.peers, empty))
        for peer in transport.peers:
            pending.send(peer, empty)
        landed = list(pending.arrivals())
        transport.close()
        return landed

    assert run_ranks_as_threads(2, body) == [[], []]


@pytest.mark.slow
def test_a_silent_rank_is_named_by_all_others() -> None:
    def body(rank: int, group: Any, store: Any) -> str:
        transport = Transport(group, timeout_s=1.0, store=store)
        if rank == 2:
            time.sleep(6)
            return ""
        # Rank 1 waits for rank 2 and rank 0 waits for rank 1, which fails because of rank 2.
        waits_for = {0: 1, 1: 2}[rank]
        time.sleep(0.3 * (1 - rank))
        pending = transport.open("layer 1", 0, {waits_for: torch.empty(8)})
        with pytest.raises(PeerError) as caught:
            list(pending.arrivals())
        transport.close()
        return str(caught.value)

    messages = run_ranks_as_threads(3, body)
    # Unless rank 0, which began later, gave up first; both wait a while for what the other has to say.
    assert "rank 1 waited in layer 1: rank 2 " in messages[1]
    assert "sent nothing for 1 s" in messages[1] or "others stopped after it" in messages[1]
    assert "rank 2" in messages[0], messages[0]
    assert "log of rank 2" in messages[0]


@pytest.mark.slow
def test_a_rank_that_is_missing_from_a_sum_is_named() -> None:
    def body(rank: int, group: Any, store: Any) -> str:
        transport = Transport(group, timeout_s=1.0, store=store)
        if rank == 2:
            time.sleep(6)
            return ""
        with pytest.raises(PeerError) as caught:
            transport.all_reduce(torch.zeros(4), "the gradient all-reduce")
        transport.close()
        return str(caught.value)

    messages = run_ranks_as_threads(3, body)
    for rank in (0, 1):
        assert f"rank {rank} waited in the gradient all-reduce: rank 2" in messages[rank]


@pytest.mark.slow
@pytest.mark.parametrize("waits_in", ["a sum", "a message"])
def test_a_patient_rank_gives_up_with_an_impatient_one(waits_in: str) -> None:
    """Rank 1 gives up first; rank 0, which would wait for much longer, hears of it and both can name rank 2."""

    def body(rank: int, group: Any, store: Any) -> str:
        transport = Transport(group, timeout_s={0: 50, 1: 1, 2: 1}[rank], store=store)
        if rank == 2:
            time.sleep(6)
            return ""
        with pytest.raises(PeerError) as caught:
            if rank == 0 and waits_in == "a message":
                list(transport.open("layer 1", 0, {1: torch.empty(8)}).arrivals())
            else:
                transport.all_reduce(torch.zeros(4), "the sum")
        return str(caught.value)

    messages = run_ranks_as_threads(3, body, timeout_s=20)
    for rank in (0, 1):
        assert "log of rank 2" in messages[rank], messages[rank]


def test_every_rank_gets_the_slowest_the_sum_and_the_mean_in_the_shape_of_the_values() -> None:
    def body(rank: int, group: Any, store: Any) -> tuple[float, list[list[float]], list[float]]:
        transport = Transport(group, timeout_s=20, store=store)
        seconds = float(transport.slowest(1.0 + rank, "times"))
        nested = transport.total([[rank, 1], [0, 2 * rank]]).tolist()
        return seconds, nested, transport.mean(np.array([rank, 4])).tolist()

    found = run_ranks_as_threads(3, body)
    assert found == [(3.0, [[3.0, 3.0], [0.0, 6.0]], [1.0, 4.0])] * 3


def test_one_rank_is_its_own_slowest() -> None:
    def body(rank: int, group: Any, store: Any) -> list[float]:
        return Transport(group, store=store).slowest([0.5, 2]).tolist()

    assert run_ranks_as_threads(1, body) == [[0.5, 2.0]]


class Gone:
    """A store whose process has ended."""

    def check(self, keys: list[str]) -> bool:
        raise dist.DistNetworkError("Connection reset by peer")

    def set(self, key: str, value: str) -> None:
        raise dist.DistNetworkError("Connection reset by peer")


def test_a_rank_that_ended_with_the_store_is_no_failure_of_others() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        transport = Transport(group, timeout_s=4.0, store=Gone())
        pending = transport.open("layer 1", 0, {2: torch.empty(8)} if rank == 1 else {})
        if rank == 2:
            time.sleep(0.8)
            pending.send(1, torch.zeros(8))
            pending.wait_sends()
        assert list(pending.arrivals()) == ([2] if rank == 1 else [])
        if rank == 1:
            with pytest.raises(PeerError, match="log of rank 0"):
                transport.all_reduce(torch.zeros(4), "the sum")
        transport.close()

    run_ranks_as_threads(3, body)


@pytest.mark.parametrize("waits_in", ["sum", "message"])
def test_nobody_waits_on_in_a_group_that_lost_a_rank(waits_in: str) -> None:
    """Others never come; the group, one of whose threads waits still, is not destroyed with the transport."""
    gone = threading.Event()

    def body(rank: int, group: Any, store: Any) -> None:
        if rank == 0:
            transport = Transport(group, timeout_s=60, is_lost=lambda: True)
            with pytest.raises(PeerError, match="a rank of the group was lost"):
                if waits_in == "sum":
                    transport.all_reduce(torch.zeros(4), "the sum")
                else:
                    transport.exchange("the message", 1, {}, {1: torch.zeros(4)})
            gone.set()
        assert gone.wait(20)

    run_ranks_as_threads(2, body)


class EndsAfterTheLook:
    """A collective that ends between the end of a wait and the question whether it has ended."""

    def __init__(self, error: str = "") -> None:
        self.error, self.waits = error, 0

    def wait(self, timeout: Any = None) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return True


@pytest.mark.slow
def test_a_collective_that_ends_just_after_a_wait_is_no_failure() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        transport = Transport(group, timeout_s=20, store=store)
        transport.wait_for(EndsAfterTheLook(), "the test")  # type: ignore[arg-type]
        if rank == 0:
            with pytest.raises(PeerError, match="closed its connection"):
                transport.wait_for(EndsAfterTheLook("connection reset"), "the test")  # type: ignore[arg-type]
        transport.close()

    run_ranks_as_threads(2, body)


_ENDING = """
import threading, time, weakref
import torch, torch.distributed as dist
from wirewise.runtime.transport import Transport

store, options = dist.HashStore(), dist.ProcessGroupGloo._Options()
options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
groups = [None, None]

def start(rank):
    groups[rank] = dist.ProcessGroupGloo(store, rank, 2, options)

threads = [threading.Thread(target=start, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
transport = Transport(groups[0])
tensor = transport.lend(torch.zeros(1))
slow = weakref.ref(tensor, lambda _: time.sleep(1.0))
groups[0].allreduce([tensor])
del tensor
groups[1].allreduce([torch.zeros(1)]).wait()
print("end", flush=True)
"""


@pytest.mark.dist
@pytest.mark.cold  # it looks at the end of the interpreter
@pytest.mark.slow
def test_a_program_ends_once_the_group_has_let_go_of_its_tensors() -> None:
    """A tensor that only the thread of the group still holds, for a second, does not end the program early."""
    done = subprocess.run([sys.executable, "-c", _ENDING], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def _state(rank: int) -> dict[str, torch.Tensor]:
    """Tensors of many types; two of them are views, and one alone fills a message."""
    drawn = torch.Generator().manual_seed(rank)
    return {
        "weight": torch.randn(3, 4, generator=drawn).t(),
        "table": torch.randn(5_000_000, generator=drawn),
        "half": torch.randn(7, generator=drawn).half()[::2],
        "mean": torch.randn(2, generator=drawn).bfloat16(),
        "steps": torch.tensor(rank + 3),
        "mask": torch.rand(9, generator=drawn) > 0.5,
        "none": torch.empty(0, 4),
        "poisoned": torch.full((2,), float("nan") if rank else 1.0),
        "phase": torch.randn(3, generator=drawn, dtype=torch.complex64),
        "bias": torch.nn.Parameter(torch.randn(4, generator=drawn)),
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_broadcast_gives_all_ranks_what_rank_0_has(ranks: int) -> None:
    def body(rank: int, group: Any, store: Any) -> list[bool]:
        transport = Transport(group, timeout_s=20, store=store)
        tensors, expected = _state(rank), _state(0)
        places = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        transport.broadcast(tensors)
        transport.broadcast(tensors, "the broadcast of the buffers", compared=True)
        transport.close()
        assert places == {name: tensor.data_ptr() for name, tensor in tensors.items()}
        return [torch.equal(tensor, expected[name]) for name, tensor in tensors.items()]

    assert all(all(found) for found in run_ranks_as_threads(ranks, body))


@pytest.mark.slow
def test_a_broadcast_that_waits_in_vain_names_tensor_and_rank() -> None:
    def body(rank: int, group: Any, store: Any) -> str:
        transport = Transport(group, timeout_s=1.0, store=store)
        if rank == 0:
            time.sleep(5)
            return ""
        with pytest.raises(PeerError) as caught:
            transport.broadcast({"first.weight": torch.ones(2), "last.bias": torch.ones(3)}, compared=True)
        transport.close()
        return str(caught.value)

    for message in run_ranks_as_threads(3, body)[1:]:
        assert "the broadcast of the parameters ('first.weight' to 'last.bias'): rank 0 " in message
        assert "rank 0 sent nothing" in message or "rank 0 failed first" in message


@pytest.mark.parametrize("content", [b"", b"0", bytes(range(256)) * 300])
def test_bytes_of_rank_0_come_to_all(content: bytes) -> None:
    def body(rank: int, group: Any, store: Any) -> bytes:
        transport = Transport(group, timeout_s=20, store=store)
        found = transport.from_first(content if rank == 0 else b"not used", "a plan")
        transport.close()
        return found

    assert run_ranks_as_threads(3, body) == [content] * 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_bytes_of_all_ranks_come_to_all(ranks: int) -> None:
    given = [b"\0a", b"", bytes(range(256)) * 300][:ranks]

    def body(rank: int, group: Any, store: Any) -> list[bytes]:
        transport = Transport(group, timeout_s=20, store=store)
        found = transport.from_all(given[rank], "what ranks tell")
        transport.close()
        return found

    assert run_ranks_as_threads(ranks, body) == [given] * ranks
