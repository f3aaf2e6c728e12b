"""The integer program solved by all ranks together, without a master and without gathering weights.

Every rank knows the weights of its own channels only. At the optimal time Z of a round, the marginal cost of time
equals the marginal variance saved on all its channels together. Each rank sums its channels' marginal savings at a
trial Z, an all-reduce of one number per round (for all exchanges at once) gives the total, and bisection finds Z.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wirewise.cost import Links
from wirewise.planners.arrays import Vector
from wirewise.planners.bitwidth.frontier import lower_convex_hull, order_upgrades
from wirewise.planners.bitwidth.problem import (
    BitWidthProblem,
    ExchangeProblem,
    Key,
    make_plan,
    noise_factor,
    own_channels,
)
from wirewise.plans import BitWidthPlan

__all__ = ["distributed", "plan_own_channels", "run_ranks"]

T = TypeVar("T")
AllReduce = Callable[[Vector], Vector]
"""All-reduce that sums a float64 vector, equally long on all ranks."""


@dataclass
class _Curve:
    """Upgrades of one channel, steepest first."""

    latency_s: float
    s_per_byte: float
    size_bytes: Vector
    """Bytes after each number of upgrades, [upgrades + 1]."""
    drop_per_byte: Vector
    """Variance saved a byte by each upgrade, falling, [upgrades]."""
    group: NDArray[np.int64]
    """Message of each upgrade."""
    names: NDArray[np.uint8]
    noise: tuple[float, float]
    """Variance at the fewest and at the most bits."""

    def seconds(self, upgrades: int) -> float:
        return self.latency_s + self.s_per_byte * float(self.size_bytes[upgrades])

    def affordable(self, limit_s: float) -> int:
        """Upgrades that end within the time limit."""
        if self.s_per_byte <= 0:
            return len(self.group)
        budget = (limit_s - self.latency_s) / self.s_per_byte * (1 + 1e-12)
        return max(int(np.searchsorted(self.size_bytes, budget, side="right")) - 1, 0)

    def saving(self, limit_s: float) -> float:
        """Variance that one more second would save."""
        done = self.affordable(limit_s)
        return float(self.drop_per_byte[done]) / self.s_per_byte if done < len(self.drop_per_byte) else 0.0

    def bits(self, upgrades: int, count: int) -> NDArray[np.uint8]:
        return self.names[np.bincount(self.group[:upgrades], minlength=count)]


def _curve(
    weights: Vector,
    exchange: ExchangeProblem,
    bits: Sequence[int],
    param_bytes: int,
    link: tuple[float, float],
) -> _Curve:
    size = exchange.sizes(bits, param_bytes)
    factor = np.array([noise_factor(b) for b in bits])
    kept = lower_convex_hull(size, factor)
    size, factor, names = size[kept], factor[kept], np.array(bits, dtype=np.uint8)[kept]
    message, extra, _, gain = order_upgrades(weights, size, factor)
    total = extra + len(weights) * size[0]
    ends = (float(factor[0] * weights.sum()), float(factor[-1] * weights.sum()))
    return _Curve(*link, total.astype(np.float64), gain, message, names, ends)


def plan_own_channels(
    problem: BitWidthProblem,
    links: Links,
    *,
    rank: int,
    allreduce: AllReduce,
    lam: float = 0.5,
    bits: Sequence[int] = (2, 4, 8),
    steps: int = 40,
) -> dict[Key, NDArray[np.uint8]]:
    """Choose the bit width of every message that this rank sends; a collective call.

    The result is within one message per channel of the exact optimum of `BitWidthProgram` with groups of one. All
    ranks call it together, with the same exchanges in the same order. Traffic per rank: 8 bytes * exchanges * (P - 1)
    * (steps + 2 P) and two numbers per exchange, under 20 KB for 8 ranks and 5 exchanges.

    Args:
        problem: This rank's channels only.
        links: Costs of this rank's channels; the others are not read.
        rank: Index of this rank.
        allreduce: Sum over ranks.
        lam: Weight of the noise against the time.
        bits: Allowed bit widths.
        steps: Number of bisections.

    Raises:
        PlanError: A channel belongs to another rank, or weights are invalid.
    """
    problem.validate()
    problem.check_sender(rank)
    curves: dict[Key, _Curve] = {}
    for e in problem.exchanges:
        for c in e.channels:
            cost = links.pair(rank, c.receiver)
            link = (cost.latency_s, cost.s_per_byte)
            curves[e.name, rank, c.receiver] = _curve(c.weights, e, sorted(bits), problem.param_bytes, link)
    rounds = _Rounds(curves, [e.name for e in problem.exchanges], rank, problem.world_size, allreduce)
    limit, counts = rounds.limits(lam, steps), problem.messages()
    return {
        key: curve.bits(curve.affordable(float(limit[rounds.slots[key]])), counts[key])
        for key, curve in curves.items()
    }


class _Rounds:
    """Times of all rounds, [exchanges, rounds], that the ranks find together.

    Args:
        curves: Curves of this rank's channels.
        names: Names of the exchanges.
        rank: Index of this rank.
        ranks: Number of ranks.
        allreduce: Sum over ranks.
    """

    def __init__(
        self, curves: dict[Key, _Curve], names: list[str], rank: int, ranks: int, allreduce: AllReduce
    ) -> None:
        self._curves, self._allreduce = curves, allreduce
        self.slots = {key: (names.index(key[0]), (key[2] - rank) % ranks - 1) for key in curves}
        # Times at the fewest and at the most bits: a maximum over ranks, as a sum of own slots.
        ends = np.zeros((2, len(names), ranks - 1, ranks))
        for key, curve in curves.items():
            if len(curve.group):
                ends[(slice(None), *self.slots[key], rank)] = curve.seconds(0), curve.seconds(-1)
        self._low, self._high = self._sum(ends).max(axis=-1, initial=0.0)

    def _sum(self, own: Vector) -> Vector:
        return np.asarray(self._allreduce(own.ravel())).reshape(own.shape)

    def _prices(self, lam: float) -> tuple[Vector, Vector]:
        """Objective a unit of variance and a second, [exchanges]."""
        noise = np.zeros((len(self._low), 2))
        for key, curve in self._curves.items():
            noise[self.slots[key][0]] += curve.noise
        total = self._sum(noise)
        noise_span, time_span = total[:, 0] - total[:, 1], (self._high - self._low).sum(axis=1)
        noise_price = np.divide(lam, noise_span, out=np.zeros(len(total)), where=noise_span > 0)
        return noise_price, np.divide(1.0 - lam, time_span, out=np.zeros(len(total)), where=time_span > 0)

    def limits(self, lam: float, steps: int) -> Vector:
        """Time of each round where one more second saves less than it costs, by bisection."""
        noise_price, time_price = self._prices(lam)

        def worth(limit: Vector) -> NDArray[np.bool_]:
            saving = np.zeros_like(limit)
            for key, curve in self._curves.items():
                slot = self.slots[key]
                saving[slot] += noise_price[slot[0]] * curve.saving(float(limit[slot]))
            return np.greater(self._sum(saving), time_price[:, None])

        # Where not even the first second pays, the round stays at its shortest.
        low, high = self._low, np.where(worth(self._low), self._high, self._low)
        for _ in range(steps - 1):
            middle = 0.5 * (low + high)
            more = worth(middle)
            low, high = np.where(more, middle, low), np.where(more, high, middle)
        return high


def distributed(
    problem: BitWidthProblem,
    *,
    lam: float = 0.5,
    bits: Sequence[int] = (2, 4, 8),
    steps: int = 40,
    seed: int = 0,
) -> BitWidthPlan:
    """Choose bit widths as the ranks would by communicating, in one process (each rank a thread).

    Args:
        problem: Messages, weights and costs.
        lam: Weight of the noise against the time, in [0, 1].
        bits: Allowed bit widths.
        steps: Number of bisections for the price of time.
        seed: Recorded in the plan.

    Raises:
        PlanError: A weight or an option is invalid, or costs are missing.
    """
    links = problem.priced.links
    problem.validate()

    def own(rank: int, exchange: Callable[[Vector], list[Vector]]) -> dict[Key, NDArray[np.uint8]]:
        def allreduce(vector: Vector) -> Vector:
            return np.asarray(np.sum(exchange(vector), axis=0))

        part = own_channels(problem, rank)
        return plan_own_channels(part, links, rank=rank, allreduce=allreduce, lam=lam, bits=bits, steps=steps)

    found: dict[Key, NDArray[np.uint8]] = {}
    for result in run_ranks(problem.world_size, own):
        found.update(result)
    return make_plan(problem, found, planner="distributed", seed=seed)


def run_ranks(
    world_size: int, body: Callable[[int, Callable[[Vector], list[Vector]]], T], *, timeout_s: float = 60.0
) -> list[T]:
    """Run `body(rank, allgather)` for every rank as a thread of this process; returns results in rank order.

    Raises the first error of any rank; the other ranks are interrupted.
    """
    barrier = threading.Barrier(world_size, timeout=timeout_s)
    slots: list[Any] = [None] * world_size
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def allgather(rank: int, own: Vector) -> list[Vector]:
        slots[rank] = own.copy()
        barrier.wait()
        everyone = list(slots)
        barrier.wait()
        return everyone

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank, lambda own: allgather(rank, own))
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
