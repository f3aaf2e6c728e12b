"""Slowdown of back-propagation by concurrent collectives.

Ranks that share CPUs with the threads that send their gradients compute more slowly while these work: four ranks on
two CPUs by a third. Times of codecs and collectives measured alone do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from wirewise.cost.gradients import GradientCosts, Knots
from wirewise.profile.rounds import make_monotonic
from wirewise.runtime.data_parallel.exchanges import Exchanges
from wirewise.runtime.transport import Transport

__all__ = ["Backward", "measure_delays"]

Backward = Callable[[Callable[[], Future[None]]], float]
"""Function that executes a step without communication, calls its argument when back-propagation begins, and returns
the seconds of back-propagation."""

_STEPS = 5
_SIZES = 3
_BEYOND = 1.5
"""Collectives last so many times as long as back-propagation alone, so that they last as long as it does with them."""


def measure_delays(costs: GradientCosts, transport: Transport, backward: Backward) -> dict[str, Knots]:
    """Measure `GradientCosts.delays`: back-propagation with and without concurrent collectives.

    The delay is the time by which back-propagation takes longer, as a fraction of the collective's time. A collective
    call with equal results; the slowest rank of each step counts.

    Args:
        costs: Costs, the same on all ranks, with measured schemes.
        transport: Messages between the ranks.
        backward: Step without communication, see `Backward`.

    Raises:
        PeerError: A peer is gone.
    """
    exchanges, found = Exchanges(transport, "the measuring of delays"), dict[str, Knots]()
    with ThreadPoolExecutor(1, "wirewise-delay") as thread:
        for scheme, knots in costs.schemes.items():
            alone_s = _median_s(transport, thread, backward, lambda: None)
            delays = []
            for size, seconds in _some(knots, alone_s):
                act = _repeated(exchanges, scheme, int(size), int(np.ceil(_BEYOND * alone_s / seconds)))
                share = max(1.0 - alone_s / _median_s(transport, thread, backward, act), 0.0)
                delays.append((size, share * seconds))
            found[scheme] = make_monotonic(*zip(*delays, strict=True))
    return found


def _some(knots: Knots, longest_s: float) -> Iterator[tuple[float, float]]:
    """A few sizes, none with collectives that outlast back-propagation, but at least two."""
    count = max(sum(seconds <= longest_s for _, seconds in knots), 2)
    return (knots[int(i)] for i in np.unique(np.linspace(0, count - 1, _SIZES).astype(int)))


def _median_s(
    transport: Transport, thread: ThreadPoolExecutor, backward: Backward, act: Callable[[], None]
) -> float:
    """Median seconds of the slowest rank, after a step that does not count."""
    seconds, started = list[float](), list[Future[None]]()

    def begin() -> Future[None]:
        started.append(thread.submit(act))
        return started[-1]

    for _ in range(1 + _STEPS):
        seconds.append(backward(begin))
        started[-1].result()
    return float(np.median(transport.slowest(seconds[1:])))


def _repeated(exchanges: Exchanges, scheme: str, size_bytes: int, count: int) -> Callable[[], None]:
    """A number of collectives one after the other, of `size_bytes` from each rank."""
    ranks = exchanges.transport.world_size
    share = -(-size_bytes // ranks)
    values, own = torch.zeros(-(-size_bytes // 4)), torch.zeros(size_bytes, dtype=torch.uint8)
    parts = dict(enumerate(torch.zeros(ranks, share, dtype=torch.uint8)))

    def divisible() -> None:
        exchanges.all_to_all(parts, dict.fromkeys(parts, share))
        exchanges.all_gather(parts[0])

    once = {
        "all_reduce": lambda: exchanges.all_reduce(values),
        "all_gather": lambda: exchanges.all_gather(own),
        "divisible": divisible,
    }[scheme]

    def act() -> None:
        for _ in range(count):
            once()

    return act
