"""Bandwidth of messages between each pair of ranks of a running group, and total bandwidth of each rank."""

from __future__ import annotations

import socket
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.profile.probes import message_group
from wirewise.topology import Topology
from wirewise.topology.measured import from_pairs

__all__ = ["PairRates", "measure_pairs", "measure_rings", "probe_topology"]

_TAG = 20_418
_ROUND_TRIPS = 30
_FIRST_BYTES = 64 * 1024
_MOST_BYTES = 64 * 1024 * 1024
_LONG_S = 0.2
"""A block that takes so long is one whose rate counts: it outlasts what a shaped link lets pass at once, and the
packets in which it passes bytes. At 25 Mbit/s blocks of 0.1 s found rates from 0.94 to 1.13 of the true one."""
_REPEATS = 3
_BURST_S, _PAUSE_S, _BURSTS, _CLEAR = 5e-3, 0.02, 7, 0.1
"""A burst is looked for in so many seconds of a link's rate, each time after a pause, and must be this part of it."""
_LONGEST_S, _RINGS = 2.0, 3
"""A block takes at most about so long on the slowest of links that are all used at once, in so many rings."""


class PairRates(NamedTuple):
    """Measured bandwidths, source first."""

    rate: NDArray[np.float64]
    """Bytes per second of each pair alone, [ranks, ranks]; 1 on the diagonal."""
    latency_s: NDArray[np.float64]
    """Latency of one way, in seconds, [ranks, ranks]: half of the shortest round trip."""
    leaving: NDArray[np.float64]
    """Egress of each rank while it sends to all others, in bytes per second, [ranks]."""
    arriving: NDArray[np.float64]
    """Ingress of each rank while all others send to it, in bytes per second, [ranks]."""
    burst_bytes: NDArray[np.float64]
    """Bytes of a burst of each pair after idle time, before the bandwidth limits, [ranks, ranks]."""


def probe_topology(name: str = "measured") -> Topology:
    """Measure the group and describe it as a topology; a collective call with equal results on all ranks.

    Raises:
        InputError: There is no process group, or it has one rank.
        RuntimeError: A peer is gone.
    """
    pairs = measure_pairs()
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, socket.gethostname())
    unique = names if len(set(names)) == len(names) else [f"host{r}" for r in range(len(names))]
    return from_pairs(name, unique, **pairs._asdict(), description="Measured by `wirewise topo probe`")


def measure_pairs() -> PairRates:
    """Time messages between all pairs of ranks, one pair after another; a collective call with equal results.

    Raises:
        InputError: There is no process group, or it has one rank.
        RuntimeError: A peer is gone.
    """
    _need_several()
    group = message_group()
    ranks, own = dist.get_world_size(), dist.get_rank()
    rate, latency, burst = (np.zeros((ranks, ranks)) for _ in range(3))
    leaving, arriving = np.zeros(ranks), np.zeros(ranks)
    for source in range(ranks):
        for target in range(ranks):
            if source != target:
                measured = _pair(group, source, target)
                if own == source:
                    latency[source, target], rate[source, target], burst[source, target] = measured
    sizes = _sum(rate) + np.eye(ranks)
    for rank in range(ranks):
        others = [r for r in range(ranks) if r != rank]
        for found, flows in (
            (leaving, [(rank, o, sizes[rank, o]) for o in others]),
            (arriving, [(o, rank, sizes[o, rank]) for o in others]),
        ):
            total = sum(_size(r, _LONG_S) for _, _, r in flows)
            seconds = statistics.median(_at_once(group, flows) for _ in range(_REPEATS))
            found[rank] = total / seconds
    return PairRates(sizes, _sum(latency), leaving, arriving, _sum(burst))


def measure_rings() -> NDArray[np.float64]:
    """Measure each rank's bandwidth while all others send too; a collective call with equal results.

    Messages are sent round rings with strides 1, 2 and so on, so that the time does not grow with the number of
    ranks. A rank whose neighbours in all rings are slower appears as slow as they are.

    Returns:
        Bytes per second, [ranks]: the faster of a rank's receive and send bandwidth.

    Raises:
        InputError: There is no process group, or it has one rank.
        RuntimeError: A peer is gone.
    """
    _need_several()
    group, ranks = message_group(), dist.get_world_size()
    found = np.zeros(ranks)
    for shift in range(1, min(ranks, 1 + _RINGS)):
        arriving = _ring_rates(group, shift)
        found = np.maximum(found, np.maximum(arriving, np.roll(arriving, -shift)))
    return found


def _need_several() -> None:
    if not dist.is_initialized() or dist.get_world_size() < 2:
        raise InputError(
            "links can be measured between at least 2 ranks; start the command by torchrun or in a lab"
        )


def _ring_rates(group: Any, shift: int) -> NDArray[np.float64]:
    """Bytes per second at which each rank gets a block, [ranks], while all send one to the rank so many places on."""
    size = _FIRST_BYTES
    while True:
        # The first block uses up what a shaped link lets pass at once.
        _ring(group, shift, size)
        seconds = np.maximum(_ring(group, shift, size), 1e-4)
        longer = min(1.2 * _LONG_S / seconds.min(), _LONGEST_S / seconds.max())
        if seconds.min() >= _LONG_S or longer < 2 or size >= _MOST_BYTES:
            break
        size = min(_MOST_BYTES, int(longer * size))
    slopes = [_ring(group, shift, size) - _ring(group, shift, size // 4) for _ in range(_REPEATS)]
    rates: NDArray[np.float64] = (size - size // 4) / np.maximum(np.median(slopes, axis=0), 1e-9)
    return rates


def _ring(group: Any, shift: int, size_bytes: int) -> NDArray[np.float64]:
    """Seconds until each rank has its block, [ranks]; the same on all ranks."""
    own, ranks = dist.get_rank(), dist.get_world_size()
    block, found = torch.zeros(size_bytes, dtype=torch.uint8), np.zeros(ranks)
    arriving = torch.empty_like(block)
    dist.barrier()
    start = time.perf_counter()
    sent = group.send([block], (own + shift) % ranks, _TAG)
    group.recv([arriving], (own - shift) % ranks, _TAG).wait()
    found[own] = time.perf_counter() - start
    sent.wait()
    return _sum(found)


def _sum(own: NDArray[np.float64]) -> NDArray[np.float64]:
    total = torch.from_numpy(own.copy())
    dist.all_reduce(total)
    return total.numpy()


def _pair(group: Any, source: int, target: int) -> tuple[float, float, float]:
    """Latency in seconds, rate in bytes per second, and burst in bytes, known to the source."""
    dist.barrier()
    if dist.get_rank() not in (source, target):
        return 0.0, 0.0, 0.0
    trips = [_round_trip(group, source, target, 1) for _ in range(_ROUND_TRIPS)]
    wait, size = min(trips), _FIRST_BYTES
    while True:
        # The first block uses up what a shaped link lets pass at once; both ends must take the same decision.
        _round_trip(group, source, target, size)
        seconds = _told(group, source, target, _round_trip(group, source, target, size))
        if seconds >= _LONG_S or size >= _MOST_BYTES:
            break
        size = min(_MOST_BYTES, max(2 * size, int(1.2 * size * _LONG_S / max(seconds, 1e-4))))
    # The slope between two sizes is free of everything that each message costs once.
    slopes = [
        _round_trip(group, source, target, size) - _round_trip(group, source, target, size // 4)
        for _ in range(_REPEATS)
    ]
    rate = (size - size // 4) / max(statistics.median(slopes), 1e-9)
    rate = _told(group, source, target, rate)
    return wait / 2, rate, _burst(group, source, target, wait, rate)


def _burst(group: Any, source: int, target: int, wait: float, rate: float) -> float:
    """Bytes that pass faster than the rate allows after a pause; 0 where they are few."""
    size, trips = max(_FIRST_BYTES, min(int(rate * _BURST_S), _MOST_BYTES)), []
    for _ in range(_BURSTS):
        time.sleep(_PAUSE_S)
        trips.append(_round_trip(group, source, target, size))
    # Whatever else is busy only slows a trip down.
    early = size - rate * max(min(trips) - wait, 0.0)
    return early if early > _CLEAR * size else 0.0


def _round_trip(group: Any, source: int, target: int, size_bytes: int) -> float:
    """Seconds until the target's answer of one byte is back; on the target, those of its own side."""
    block, answer = torch.zeros(size_bytes, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    start = time.perf_counter()
    if dist.get_rank() == source:
        group.send([block], target, _TAG).wait()
        group.recv([answer], target, _TAG).wait()
    else:
        group.recv([block], source, _TAG).wait()
        group.send([answer], source, _TAG).wait()
    return time.perf_counter() - start


def _told(group: Any, source: int, target: int, seconds: float) -> float:
    """The source's figure, on both ends."""
    said = torch.tensor([seconds], dtype=torch.float64)
    if dist.get_rank() == source:
        group.send([said], target, _TAG).wait()
    else:
        group.recv([said], source, _TAG).wait()
    return float(said)


def _size(rate: float, seconds: float) -> int:
    return max(_FIRST_BYTES, int(rate * seconds))


def _at_once(group: Any, flows: list[tuple[int, int, float]]) -> float:
    """Seconds until all flows, each as long as it would take alone, are done; the same on all ranks."""
    own = dist.get_rank()
    dist.barrier()
    start = time.perf_counter()
    pending, kept = [], []
    for source, target, rate in flows:
        if own in (source, target):
            block = torch.zeros(_size(rate, _LONG_S), dtype=torch.uint8)
            kept.append(block)
            act = group.send([block], target, _TAG) if own == source else group.recv([block], source, _TAG)
            pending.append(act)
    for work in pending:
        work.wait()
    seconds = np.zeros(dist.get_world_size())
    seconds[own] = time.perf_counter() - start if pending else 0.0
    return float(_sum(seconds).max())
