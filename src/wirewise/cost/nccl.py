"""Cost model of stock NCCL: latency and bandwidth of ring, tree and PAT in each protocol.

The model and its constants are those of NCCL 2.30 (NVIDIA/nccl, src/graph/tuning.cc, in later trees src/tuning/).
NVLS and CollNet, which reduce in switches, are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from wirewise.collective.exporters.rings import Ring
from wirewise.errors import InputError

__all__ = ["CALLS", "Gpu", "Machine", "SizeRange", "best", "candidates", "choices", "machine", "predict"]

Algorithm = Literal["tree", "ring", "pat"]
Protocol = Literal["ll", "ll128", "simple"]
Gpu = Literal["volta", "ampere", "hopper", "blackwell"]

CALLS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""Collectives that NCCL chooses an algorithm for."""
_PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")
_GPUS: tuple[Gpu, ...] = ("volta", "ampere", "hopper", "blackwell")

# Microseconds, by protocol.
_BASE: dict[Algorithm, tuple[float, ...]] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "pat": (8.0,) * 3,
}
_HOP: dict[str, dict[Algorithm, tuple[float, ...]]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "pat": (0.0, 0.0, 4.0)},
    "pcie": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "pat": (0.0, 0.0, 4.0)},
    "net": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "pat": (0.0, 0.0, 14.0)},
}
# GB/s by GPU, for one, two and more hosts. The first is of all channels, the others are of each.
_MOST_LL = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_MOST_RING_LL128 = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
_MOST_TREE_LL128 = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_MOST_TREE = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
# What a tree reaches of its bandwidth, for powers of two from 64 bytes on.
_TREE_PART: dict[Protocol, tuple[float, ...]] = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9),
    "simple": (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}


class Machine(NamedTuple):
    """Hardware parameters of the model."""

    ranks: int
    hosts: int
    nvlink: bool
    """Whether hops within a host go over NVLink, else PCIe."""
    channels: int
    bandwidth_bytes_per_s: float
    """Bytes per second of all channels together."""
    gpu: Gpu = "ampere"


class SizeRange(NamedTuple):
    """Range of sizes, and the fastest choice in it."""

    min_bytes: int
    max_bytes: int
    """The last size of the range."""
    algorithm: Algorithm
    protocol: Protocol


def machine(
    rings: Sequence[Ring],
    hosts: Sequence[Sequence[int]],
    *,
    nvlink: bool,
    gpu: Gpu = "ampere",
) -> Machine:
    """Machine with the given rings as channels; rings above 25 GB/s count as several channels."""
    total = sum(ring.bandwidth_bytes_per_s for ring in rings)
    channels = min(32, max(len(rings), round(total / 25e9)))
    return Machine(sum(map(len, hosts)), len(hosts), nvlink, channels, total, gpu)


def candidates(collective: str, hardware: Machine) -> list[tuple[Algorithm, Protocol]]:
    """Algorithms and protocols that NCCL considers.

    Raises:
        InputError: NCCL makes no choice for the collective.
    """
    if collective not in CALLS:
        raise InputError(f"NCCL chooses no algorithm for {collective!r}; expected one of {', '.join(CALLS)}")
    # LL128 relies on the order in which NVLink stores.
    protocols = [p for p in _PROTOCOLS if p != "ll128" or hardware.nvlink]
    found: list[tuple[Algorithm, Protocol]] = [("ring", p) for p in protocols]
    if collective == "all_reduce":
        found += [("tree", p) for p in protocols]
    if collective in ("all_gather", "reduce_scatter") and hardware.ranks == hardware.hosts:
        found.append(("pat", "simple"))
    return found


def predict(
    collective: str, algorithm: Algorithm, protocol: Protocol, size_bytes: float, hardware: Machine
) -> float:
    """Predict the time of one call, in seconds.

    Args:
        collective: One of `CALLS`.
        algorithm: Ring, tree (all-reduce only) or PAT (all-gather and reduce-scatter, one rank per host).
        protocol: Protocol of NCCL.
        size_bytes: Bytes of the larger buffer of a rank, in or out.
        hardware: Machine that it runs on.
    """
    latency_us = _latency_us(collective, algorithm, protocol, hardware)
    gb_per_s = _bandwidth(collective, algorithm, protocol, hardware)
    if algorithm == "tree" and size_bytes >= 64:
        parts = _TREE_PART[protocol]
        power = int(math.log2(size_bytes / 64))
        gb_per_s *= parts[power] if power < len(parts) else parts[-1] if protocol == "simple" else 1.0
    large = size_bytes / (hardware.channels * hardware.ranks) >= 64
    if (collective, algorithm, protocol) == ("all_reduce", "ring", "simple") and hardware.hosts > 1 and large:
        latency_us *= 1.9 if hardware.gpu == "volta" else 1.4
    return latency_us * 1e-6 + size_bytes / (gb_per_s * 1e9)


def best(collective: str, size_bytes: float, hardware: Machine) -> tuple[Algorithm, Protocol]:
    """Fastest choice by the model; ties go to the first of `candidates`."""
    return min(
        candidates(collective, hardware),
        key=lambda one: predict(collective, one[0], one[1], size_bytes, hardware),
    )


def choices(collective: str, hardware: Machine, sizes: Iterable[int] | None = None) -> list[SizeRange]:
    """Fastest choice for each range of sizes, without gaps from 0 bytes on.

    Args:
        collective: One of `CALLS`.
        hardware: Machine that runs the collective.
        sizes: Ascending sizes to evaluate, in bytes; each stands for those up to the next. Defaults to four per power
            of two, from 64 bytes to 4 GiB.
    """
    looked = list(sizes) if sizes is not None else [round(2 ** (n / 4)) for n in range(24, 129)]
    return list(_ranges([(size, best(collective, size, hardware)) for size in looked]))


def _ranges(found: list[tuple[int, tuple[Algorithm, Protocol]]]) -> Iterator[SizeRange]:
    begin, current = 0, found[0][1]
    for size, choice in found[1:]:
        if choice != current:
            yield SizeRange(begin, size - 1, *current)
            begin, current = size, choice
    yield SizeRange(begin, 2**63 - 1, *current)


def _steps(collective: str, ranks: int) -> int:
    if collective == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if collective in ("all_gather", "reduce_scatter") else ranks


def _latency_us(collective: str, algorithm: Algorithm, protocol: Protocol, hardware: Machine) -> float:
    p = _PROTOCOLS.index(protocol)
    inside = _HOP["nvlink" if hardware.nvlink else "pcie"]
    intra, inter = inside[algorithm][p], _HOP["net"][algorithm][p]
    base = _BASE[algorithm][p]
    if algorithm == "pat":
        return base + int(math.log2(hardware.hosts)) * inter / 3.5 + hardware.ranks * 2.8
    if hardware.hosts > 1 and protocol == "ll":
        intra *= 1.8
    if algorithm == "tree":
        return base + 2 * (
            (hardware.ranks // hardware.hosts - 1) * intra + int(math.log2(hardware.hosts)) * inter
        )
    steps = _steps(collective, hardware.ranks)
    if collective in ("broadcast", "reduce"):
        hops = inside if hardware.hosts == 1 else _HOP["net"]
        return base + steps * hops["tree" if protocol == "simple" else "ring"][p]
    outside = min(steps, _steps(collective, hardware.hosts)) if hardware.hosts > 1 else 0
    return base + (steps - outside) * intra + outside * inter


def _bandwidth(collective: str, algorithm: Algorithm, protocol: Protocol, hardware: Machine) -> float:
    """GB/s of the size of the collective, without latency."""
    gpu, scale = _GPUS.index(hardware.gpu), min(hardware.hosts, 3) - 1
    # With several hosts NCCL goes by the CPU; this is Intel's row.
    most_ll = _MOST_LL[gpu if hardware.hosts == 1 else 0][scale]
    bus = hardware.bandwidth_bytes_per_s / 1e9
    if algorithm == "pat":
        return bus * 0.75 * hardware.ranks / (hardware.ranks - 1)
    if algorithm == "tree":
        bus = min(bus * 0.92, hardware.channels * _MOST_TREE[gpu][scale])
        if protocol == "ll":
            bus = min(bus / 3.8, most_ll)
        if protocol == "ll128":
            part = 7 / 9 if hardware.hosts == 1 else 120 / 128
            bus = min(bus * part, hardware.channels * _MOST_TREE_LL128[gpu][scale])
        return bus / 2
    if protocol == "ll":
        bus = min(bus / 2, most_ll)
    if protocol == "ll128":
        bus = min(bus * 0.92, hardware.channels * _MOST_RING_LL128[gpu][scale])
    return bus * hardware.ranks / _steps(collective, hardware.ranks)
