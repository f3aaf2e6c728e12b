"""Lines between two ranks: order, shapes that are told once, and ends that are gone."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError, PeerError
from wirewise.runtime.pipeline.messages import Inbox, Outbox, ValueSpec
from wirewise.runtime.transport import Transport


def test_descriptions_are_read_as_they_were_written() -> None:
    for shape, dtype, wants in (((), torch.bool, False), ((3, 0, 5), torch.bfloat16, True)):
        found = ValueSpec.unpack(ValueSpec(torch.Size(shape), dtype, wants).pack("x"))
        assert (found.shape, found.dtype, found.wants_gradient) == (torch.Size(shape), dtype, wants)
    with pytest.raises(InputError, match="at most 12 dimensions"):
        ValueSpec(torch.Size([1] * 13), torch.float32, True).pack("activations '3'")


def _ends(rank: int, group: Any, store: Any, timeout_s: float = 20.0) -> Any:
    transport = Transport(group, timeout_s=timeout_s, store=store)
    return (Outbox if rank == 0 else Inbox)(
        transport, 1 - rank, 0, 2, 4, "activations 'a'", "stage 1 waits for stage 0"
    )


def test_messages_are_taken_in_the_order_in_which_they_were_posted() -> None:
    keys = [(update, k) for update in range(2) for k in range(4)]
    taken = threading.Event()

    def body(rank: int, group: Any, store: Any) -> Any:
        line = _ends(rank, group, store)
        if rank == 0:
            line.describe(ValueSpec(torch.Size([2]), torch.float32, True))
            # Sent in another order than they are taken in: tags tell them apart.
            for key in reversed(keys):
                line.send(key, torch.tensor([1.0 * key[0], key[1]]))
            # Its connections end with it.
            assert taken.wait(20)
        else:
            line.ask()
            for key in keys:
                line.post(key)
            found = [tuple(line.take(key).int().tolist()) for key in keys]
            taken.set()
            assert line.description.wants_gradient
            line.close()
            return found
        line.close()
        return None

    assert run_ranks_as_threads(2, body)[1] == keys


def test_empty_tensors_are_not_sent() -> None:
    taken = threading.Event()

    def body(rank: int, group: Any, store: Any) -> Any:
        line = _ends(rank, group, store)
        if rank == 0:
            line.describe(ValueSpec(torch.Size([0, 3]), torch.int64, False))
            line.send((0, 0), torch.empty(0, 3, dtype=torch.int64))
            assert taken.wait(20)
            return None
        line.ask()
        line.post((0, 0))
        shape = line.take((0, 0)).shape
        taken.set()
        return shape

    assert run_ranks_as_threads(2, body)[1] == (0, 3)


@pytest.mark.slow
def test_a_message_that_does_not_come_names_both_stages() -> None:
    def body(rank: int, group: Any, store: Any) -> str:
        line = _ends(rank, group, store, timeout_s=1.0)
        if rank == 0:
            time.sleep(5)
            return ""
        line.ask()
        line.post((2, 3))
        with pytest.raises(PeerError) as caught:
            line.take((2, 3))
        return str(caught.value)

    message = run_ranks_as_threads(2, body)[1]
    assert "activations 'a', microbatch 3 of update 2 (stage 1 waits for stage 0)" in message
    assert "rank 0 sent nothing for 1 s" in message
