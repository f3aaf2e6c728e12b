"""Two ranks on this machine exchange packed rows: a check of transport and codec, with its speed."""

from __future__ import annotations

import datetime
import statistics
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from wirewise.codec import MessageLayout, pack, unpack, warm
from wirewise.errors import CodecError, PeerError

__all__ = ["run_selftest"]

_BITS = (1, 2, 4, 8, 16, 32)
_WIDTH = 96
_ROUND_BYTES = 8_000_000
_ROUNDS = 5
_TIMEOUT_S = 20.0


def run_selftest() -> tuple[int, float]:
    """Exchange packed rows and then plain bytes between two threads, each with its own gloo group.

    Returns:
        Bytes of one packed buffer, and the median loopback bandwidth in one direction while both are busy, in bytes
        per second.

    Raises:
        PeerError: A rank failed or timed out; the message says which and how.
    """
    # On a fresh machine compiling the kernels takes half a minute, which says nothing of the transport.
    warm()
    store = HashStore()
    results: dict[int, tuple[int, float]] = {}
    errors: dict[int, BaseException] = {}

    def rank(number: int) -> None:
        try:
            results[number] = _exchange(_group(store, number), number)
        except Exception as error:
            errors[number] = error

    # Daemons: a rank that hangs must not keep the command from ending with a message.
    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for number, error in errors.items():
        raise PeerError(f"rank {number} of 2 failed: {error}") from error
    for number, thread in enumerate(threads):
        if thread.is_alive():
            raise PeerError(
                f"rank {number} of 2 did not end within {_TIMEOUT_S:g} s; see that 127.0.0.1 can be reached"
            )
    return results[0]


def _group(store: Any, rank: int) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs do not know its options
    options = gloo._Options()
    options._timeout = datetime.timedelta(seconds=_TIMEOUT_S)
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    return gloo(store, rank, 2, options)


def _exchange(group: Any, rank: int) -> tuple[int, float]:
    layout = MessageLayout(list(_BITS) * 8, _WIDTH)
    received = _swap(group, rank, _packed(layout, rank))
    _check(layout, received, 1 - rank)
    payload = torch.zeros(_ROUND_BYTES, dtype=torch.uint8)
    rates = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        _swap(group, rank, payload)
        rates.append(_ROUND_BYTES / (time.perf_counter() - start))
    return layout.size_bytes, statistics.median(rates)


def _swap(group: Any, rank: int, buffer: torch.Tensor) -> torch.Tensor:
    received = torch.empty_like(buffer)
    works = [group.recv([received], 1 - rank, 0), group.send([buffer], 1 - rank, 0)]
    for work in works:
        work.wait()
    return received


def _rows(count: int, sender: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sender)
    return torch.rand(count, _WIDTH, generator=generator)


def _packed(layout: MessageLayout, sender: int) -> torch.Tensor:
    count = len(layout)
    buffer = torch.empty(layout.size_bytes, dtype=torch.uint8)
    pack(_rows(count, sender), None, layout, buffer, key=sender, rows=torch.arange(count))
    return buffer


def _check(layout: MessageLayout, buffer: torch.Tensor, sender: int) -> None:
    """Compare the decoded rows with what the peer must have sent: at most one step off, and rounding."""
    sent = _rows(len(layout), sender)
    decoded = torch.empty_like(sent)
    unpack(buffer, layout, decoded)
    spread = sent.amax(1) - sent.amin(1)
    bits = torch.as_tensor(layout.bits).double()
    # 1 % above the step for its bfloat16 rounding; wide rows carry 8 or 24 bits of mantissa.
    steps = spread / (2.0 ** bits.clamp(max=8) - 1) * 1.01
    bound = torch.where(bits == 16, torch.full_like(steps, 2.0**-8), steps)
    bound = torch.where(bits == 32, torch.zeros_like(steps), bound)
    worst = ((decoded - sent).abs().amax(1) - bound).max().item()
    if worst > 0:
        raise CodecError(
            f"a received row is {worst:g} further from the sent one than its bits allow; install wirewise "
            "again, and report this machine's processor if it stays"
        )
