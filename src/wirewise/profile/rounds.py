"""Times of concurrent work on all ranks: rounds with a common start, and series of gradient collectives.

A collective is timed in a series without pauses, because groups of gradients queue up: with several ranks on a few
CPUs it then takes longer than alone, and single times cluster at a few values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

__all__ = ["Bench", "Communicator", "Knots", "collective_times", "concurrent_times", "make_monotonic"]

_STEP = 6
"""Ratio of the bytes of one collective to those of the one before."""
_LEAST_BYTES = 64
_ROUNDS = (5, 15)
_SERIES = (4, 40)
_BUDGET_S = 0.4
"""Seconds for the rounds of one size; at the least number of rounds it may be more."""
_AT_ONCE = 8
"""Uncompressed all-reduces in flight together."""
_PAUSE_S = 0.002
"""Pause before each round, so that it begins as in a step: from waiting for the accelerator, not in a hot loop."""
_LONG_S = 1.0
"""Nothing larger than a collective of so many seconds is tried once seconds grow half as much as bytes: the rate
of the wire is known by then. With many ranks on few processors one that carries nothing may take as long."""

Knots = tuple[tuple[float, float], ...]


class Communicator(Protocol):
    """Required part of `runtime.Transport`."""

    group: Any
    world_size: int

    def slowest(self, values: ArrayLike) -> NDArray[np.float64]:
        """Maximum over ranks, elementwise."""

    def barrier(self, label: str) -> None:
        """Wait for all ranks."""

    def guard(self, action: Callable[[], object], label: str, peer: int | None = None) -> None:
        """Run a blocking call; its failure becomes a `PeerError`."""


class Bench:
    """Rounds with a common start on all ranks."""

    def __init__(self, transport: Communicator) -> None:
        self.transport, self.ranks = transport, transport.world_size

    def rounds(self, action: Callable[[], object], label: str) -> float:
        """Median seconds of the slowest rank, after a warm-up round."""
        first = float(self.transport.slowest(self._once(action, 1, label)))
        count = int(np.clip(_BUDGET_S / max(first, 1e-6), *_ROUNDS))
        return float(np.median(self.transport.slowest([self._once(action, 1, label) for _ in range(count)])))

    def series(self, action: Callable[[], object], label: str) -> float:
        """Mean seconds of one run in a series on the slowest rank, after one warm-up run."""
        first = float(self.transport.slowest(self._once(action, 1, label)))
        count = int(np.clip(_BUDGET_S / max(first, 1e-6), *_SERIES))
        return float(self.transport.slowest(self._once(action, count, label))) / count

    def _once(self, action: Callable[[], object], count: int, label: str) -> float:
        self.transport.barrier(label)
        time.sleep(_PAUSE_S)
        start_s = time.perf_counter()
        for _ in range(count):
            action()
        return time.perf_counter() - start_s


def collective_times(
    bench: Bench, gradient_bytes: int, payload_bytes: int, device: torch.device
) -> dict[str, Knots]:
    """Tables of collective times by payload bytes per rank, as `GradientCosts.schemes`.

    Args:
        bench: Ranks to measure between.
        gradient_bytes: Maximum size of an all-reduce, in bytes.
        payload_bytes: Maximum size of an all-gather, or of the two stages of the divisible scheme, in bytes; 0 if
            unused.
        device: Device of the gradients.
    """
    if bench.ranks == 1:
        return {}
    group, found = bench.transport.group, dict[str, Knots]()

    def all_reduce(size: int) -> Callable[[], object]:
        values = torch.zeros(-(-size // 4), device=device)
        return lambda: group.allreduce([values]).wait()

    def all_gather(size: int) -> Callable[[], object]:
        own = torch.zeros(size, dtype=torch.uint8, device=device)
        every = own.new_empty(bench.ranks * size)
        return lambda: group._allgather_base(every, own).wait()

    def divisible(size: int) -> Callable[[], object]:
        share = -(-size // bench.ranks)
        out, got = (torch.zeros(bench.ranks * share, dtype=torch.uint8, device=device) for _ in range(2))

        def both() -> None:
            group.alltoall_base(got, out, [], []).wait()
            group._allgather_base(out, got[:share]).wait()

        return both

    limits = {all_reduce: gradient_bytes, all_gather: payload_bytes, divisible: payload_bytes}
    for make_call, most in limits.items():
        if most:
            found[make_call.__name__] = _table(bench, make_call, most)
    return found


def concurrent_times(bench: Bench, gradient_bytes: int, device: torch.device) -> Knots:
    """Table of concurrent all-reduces, as `GradientCosts.concurrent`."""
    if bench.ranks == 1:
        return ()
    group = bench.transport.group

    def several_all_reduces(size: int) -> Callable[[], object]:
        every = [torch.zeros(-(-size // 4), device=device) for _ in range(_AT_ONCE)]

        def together() -> None:
            for work in [group.allreduce([values]) for values in every]:
                work.wait()

        return together

    knots = _table(bench, several_all_reduces, gradient_bytes)
    return tuple((size, seconds / _AT_ONCE) for size, seconds in knots)


def _table(bench: Bench, make_call: Callable[[int], Callable[[], object]], maximum: int) -> Knots:
    what, knots = f"the measuring of {make_call.__name__}", list[tuple[float, float]]()
    for size in _bytes_up_to(maximum):
        knots.append((size, bench.series(partial(bench.transport.guard, make_call(size), what), what)))
        if knots[-1][1] > _LONG_S and _is_wire_bound(knots):
            break
    sizes, seconds = zip(*knots, strict=True)
    return make_monotonic(sizes, seconds)


def _is_wire_bound(knots: Sequence[tuple[float, float]]) -> bool:
    """Whether the last two, (bytes, seconds), tell the rate of the wire."""
    if len(knots) < 2:
        return False
    (near, near_s), (far, far_s) = knots[-2:]
    return far_s * near >= 0.5 * near_s * far


def _bytes_up_to(maximum: int) -> list[int]:
    """Sizes on a logarithmic scale, the last one is the largest."""
    least = min(_LEAST_BYTES, max(maximum // 2, 1))
    count = max(int(np.ceil(np.log(maximum / least) / np.log(_STEP))) + 1, 5)
    return np.unique(np.geomspace(least, max(maximum, least + 1), count).round().astype(int)).tolist()


def make_monotonic(sizes: Sequence[float], seconds: Sequence[float]) -> Knots:
    """Make times monotonic in size: decreasing neighbours are set to their mean."""
    blocks: list[tuple[float, int]] = []
    for value in seconds:
        blocks.append((float(value), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (high, n), (low, m) = blocks[-2:]
            blocks[-2:] = [((high * n + low * m) / (n + m), n + m)]
    fitted = (value for value, count in blocks for _ in range(count))
    return tuple((float(size), value) for size, value in zip(sizes, fitted, strict=True))
