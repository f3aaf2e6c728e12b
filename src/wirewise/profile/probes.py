"""Round trips between ranks: short ones for clock offsets, long ones for link bandwidths."""

from __future__ import annotations

import datetime
import time
from typing import Any

import torch
import torch.distributed as dist

from wirewise.trace.records import Probe

__all__ = ["ROUND_TRIPS", "message_group", "probe", "probe_rates"]

ROUND_TRIPS = 100
_KEPT = 5
_TAG = 20_417
_RATE_BYTES = 128 * 1024
"""Enough to outlast what a shaped link lets pass at once, and still short on a slow one."""
_TIMEOUT = datetime.timedelta(seconds=10)


def message_group() -> Any:
    """Process group for CPU messages: the default one, or a new one made by all ranks."""
    default = dist.group.WORLD
    try:
        default._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    except RuntimeError:
        return dist.new_group(backend="gloo")
    return default


def probe(group: Any, round_trips: int = ROUND_TRIPS) -> list[Probe]:
    """Measure the shortest round trips of this rank to rank 0; a collective call.

    Args:
        group: Result of `message_group`.
        round_trips: Number of round trips with each rank, one rank after another.

    Raises:
        RuntimeError: A peer does not respond for 10 s.
    """
    rank, found = group.rank(), []
    theirs, own = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for peer in range(1, group.size()):
        for _ in range(round_trips):
            if rank == 0:
                group.recv([theirs], peer, _TAG).wait(_TIMEOUT)
                own[0] = time.perf_counter()
                group.send([own], peer, _TAG).wait(_TIMEOUT)
            elif rank == peer:
                sent = time.perf_counter()
                group.send([own], 0, _TAG).wait(_TIMEOUT)
                group.recv([theirs], 0, _TAG).wait(_TIMEOUT)
                found.append(Probe(peer=0, sent_s=sent, peer_s=float(theirs), received_s=time.perf_counter()))
    return sorted(found, key=lambda one: one.received_s - one.sent_s)[:_KEPT]


def probe_rates(group: Any) -> list[Probe]:
    """Time a block from this rank to the next rank and the one after; a collective call.

    The second of two blocks counts, as the first one uses up the burst of a shaped link.

    Raises:
        RuntimeError: A peer does not respond for 10 s.
    """
    rank, ranks = group.rank(), group.size()
    block, answer = torch.zeros(_RATE_BYTES, dtype=torch.uint8), torch.zeros(1, dtype=torch.float64)
    found = []
    for source in range(ranks):
        for target in dict.fromkeys([(source + 1) % ranks, (source + 2) % ranks]):
            if source == target:
                continue
            for _ in range(2):
                if rank == source:
                    sent = time.perf_counter()
                    group.send([block], target, _TAG).wait(_TIMEOUT)
                    group.recv([answer], target, _TAG).wait(_TIMEOUT)
                    last = Probe(
                        peer=target,
                        sent_s=sent,
                        peer_s=float(answer),
                        received_s=time.perf_counter(),
                        size_bytes=_RATE_BYTES,
                    )
                elif rank == target:
                    group.recv([block], source, _TAG).wait(_TIMEOUT)
                    answer[0] = time.perf_counter()
                    group.send([answer], source, _TAG).wait(_TIMEOUT)
            if rank == source:
                found.append(last)
    return found
