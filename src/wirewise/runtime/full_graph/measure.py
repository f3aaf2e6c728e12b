"""Measurements for planning this job: the cost of every channel and of the codec, measured in place."""

from __future__ import annotations

import socket
import statistics
import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from wirewise import codec
from wirewise.cost import CodecCost, LinkCost, Links, fit_codec, fit_link
from wirewise.runtime.transport import Transport

__all__ = ["hosts_of", "measure_codec", "measure_links", "measure_loaded"]

_PROBE_BYTES = (1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20)
_PROBE_ROUNDS = 3
_PROBE_LEAST = 3
_PROBE_LIMIT_S = 0.04
"""Once so many sizes were tried and the last took so long, larger ones are left out: a slow network shows its slope
early, and the exchanges of the training refine it. Messages of 10 ms found 14 to 27 MB/s on links of 23.9."""
_PROBE_TAG = 5
_PICKED_FROM = 16
"""Multiple of the rows that are packed."""
_LOADED_S = 0.08
"""Seconds of the longer rounds that load all channels at once."""


def hosts_of(transport: Transport) -> list[int]:
    """Host index of each rank; ranks with the same host name and network stack share a host."""
    stack = Path("/proc/self/ns/net")
    name = f"{socket.gethostname()} {stack.readlink() if stack.exists() else ''}"
    ids = [int(i) for i in transport.all_gather(torch.tensor([zlib.crc32(name.encode())]), "host names")]
    return [ids.index(i) for i in ids]


def measure_links(transport: Transport, hosts: list[int]) -> Links:
    """Measure latency and slope of every channel by ring rounds of several sizes.

    In a round every rank sends to one and receives from one, so all interfaces are busy, and a message takes as long as
    the slower of its two interfaces needs. (When all channels are loaded at once, the first messages to arrive make
    their interface look faster than it is.) Times are regressed on the bytes of the busier interface, which are more
    than the message where ranks share a host. Every rank knows the channels that it receives; the others are
    placeholders until `ExchangeCosts.share`.
    """
    size, rank = transport.world_size, transport.rank
    table = Links.of_pairs(LinkCost(latency_s=1e-4, s_per_byte=1e-8), size, hosts=hosts)
    samples: dict[int, list[tuple[float, float]]] = {p: [] for p in transport.peers}
    for _ in range(_PROBE_ROUNDS):
        for tried, count in enumerate(_PROBE_BYTES, 1):
            slowest = 0.0
            for step in range(1, size):
                source = (rank - step) % size
                load = table.load(count * np.roll(np.eye(size, dtype=np.int64), step, axis=1))
                seconds = _probe(transport, count, [(rank + step) % size], [source])[source]
                samples[source].append((float(load[source, rank]), seconds))
                slowest = max(slowest, seconds)
            if tried >= _PROBE_LEAST and transport.slowest(slowest, "end of a probe") > _PROBE_LIMIT_S:
                break
    links = {
        (s, r): LinkCost(latency_s=0.0, s_per_byte=0.0) for s in range(size) for r in range(size) if s != r
    }
    links |= {(p, rank): fit_link(taken) for p, taken in samples.items()}
    return Links.of_pairs(links, size, hosts=hosts)


def measure_loaded(transport: Transport, links: Links) -> Links:
    """Measure the links while all channels are loaded at once; equal on all ranks if `links` is.

    Flows that share an interface also share its queue, and acknowledgements are sent in the opposite direction; rounds
    of a ring show little of that. Rounds of two sizes, each as long as its slowest rank, give both the slowdown per
    byte relative to `links`, from their difference, and the fixed seconds of a round, such as those of wake-ups and of
    retransmitted packets. Neither is below the value of `links`.
    """
    ones = 1 - np.eye(transport.world_size, dtype=np.int64)
    nothing_s = float(links.wire_s(ones).max())
    expected = (float(links.wire_s(1_000_000 * ones).max()) - nothing_s) / 999_999
    most = int(np.clip(_LOADED_S / max(expected, 1e-12), 4 * _PROBE_BYTES[0], _PROBE_BYTES[-1]))
    sizes = (most // 4, most)
    rounds = [
        [max(_probe(transport, count, transport.peers, transport.peers).values()) for count in sizes]
        for _ in range(_PROBE_ROUNDS)
    ]
    few_s, many_s = np.median(transport.slowest(rounds, "loaded links"), axis=0).tolist()
    slope = max((many_s - few_s) / (sizes[1] - sizes[0]), expected)
    more_s = max(0.0, few_s - slope * sizes[0] - nothing_s)
    pairs = links.pairs
    return links.with_pairs(
        replace(
            pairs,
            latency_s=pairs.latency_s + more_s * ones,
            s_per_byte=pairs.s_per_byte * (slope / max(expected, 1e-12)),
        )
    )


def _probe(
    transport: Transport, count: int, targets: Iterable[int], sources: Iterable[int]
) -> dict[int, float]:
    """Seconds until the message of each source landed, all ranks starting together."""
    transport.all_reduce(torch.zeros(1), "start of a probe")
    buffers = {p: torch.empty(count, dtype=torch.uint8) for p in sources}
    pending = transport.open("link probe", _PROBE_TAG, buffers)
    payload = torch.zeros(count, dtype=torch.uint8)
    for peer in targets:
        pending.send(peer, payload)
    pending.launch()
    for _ in pending.arrivals():
        pass
    pending.wait_sends()
    return pending.arrival_s


def measure_codec(width: int, *, device: torch.device, rows: int = 1024, rounds: int = 9) -> CodecCost:
    """Measure the time to pack and unpack `rows` rows in every bit width, as medians of several rounds.

    As in training, rows are gathered from many more, and all ranks work at once and may share CPUs.
    """
    x = torch.randn(_PICKED_FROM * rows, width, device=device)
    picked = torch.randperm(len(x), device=device)[:rows].sort().values
    ids = np.arange(rows)
    packed, unpacked = [], []
    for bits in codec.BITS:
        layout = codec.MessageLayout(np.full(rows, bits, np.uint8), width)
        buffer = torch.empty(layout.size_bytes, dtype=torch.uint8, device=device)
        out = torch.empty(rows, width, device=device)
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            codec.pack(x, picked, layout, buffer, key=0, rows=ids)
            _finish(device)
            middle = time.perf_counter()
            codec.unpack(buffer, layout, out)
            _finish(device)
            times.append((middle - start, time.perf_counter() - middle))
        packed.append((bits, rows, width, statistics.median(t[0] for t in times)))
        unpacked.append((bits, rows, width, statistics.median(t[1] for t in times)))
    return fit_codec(packed, unpacked)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
