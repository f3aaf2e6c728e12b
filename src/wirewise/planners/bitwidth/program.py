"""Two-objective integer program of one exchange, as data shared by all solvers.

    minimise  lam * (V - V_u) / (V_n - V_u) + (1 - lam) * (T - T_u) / (T_n - T_u)
    over      one bit width b for every group g of messages of every channel c
    with      V = sum w_g c_b,   T = sum over ring rounds of the slowest channel's latency + slope * bytes

V_n and T_u are those of the fewest bits everywhere, V_u and T_n those of the most (AdaQP, section 4).
Bytes are exact by default: the last group of a channel has the rows that are left, and every quantized row
carries its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.cost import Links
from wirewise.errors import PlanError
from wirewise.planners.arrays import Ints, Vector
from wirewise.planners.bitwidth.problem import BitWidthProblem, ExchangeProblem, make_plan, noise_factor
from wirewise.plans import BITS, BitWidthPlan

__all__ = ["BitWidthProgram", "Groups", "plan_by_exchange"]


@dataclass(frozen=True)
class Groups:
    """Messages of one channel, heaviest first, divided into groups that share a bit width."""

    sender: int
    receiver: int
    order: Ints
    """Message numbers, heaviest first, [n]."""
    weights: Vector
    """Sum of the weights of each group, [groups]."""
    priced_rows: Ints
    """Rows that the byte count charges for each group, [groups]."""
    group_size: int

    def expand(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Bits of messages in send order, uint8 [n], from bits of groups."""
        out = np.empty(len(self.order), dtype=np.uint8)
        out[self.order] = np.repeat(bits, self.group_size)[: len(self.order)]
        return out


class BitWidthProgram:
    """Integer program of one exchange.

    Args:
        exchange: Messages and their weights.
        links: Latency and slope of every channel.
        lam: Weight of the noise against the time, in [0, 1].
        bits: Allowed bit widths.
        group_size: Messages that share a bit width; 1 gives each message its own.
        param_bytes: Bytes of zero point and step of a quantized row.
        normaliser: "max": T_u is the time at the fewest bits. "min": T_u sums each round's *fastest* channel, as in
            the paper's released program, which gives lam = 0.5 another meaning in every round.
        exact_bytes: Whether to charge actual bytes; if False, the last, short group counts as full and parameters as
            nothing.
    """

    def __init__(
        self,
        exchange: ExchangeProblem,
        links: Links,
        *,
        lam: float = 0.5,
        bits: Sequence[int] = (2, 4, 8),
        group_size: int = 1,
        param_bytes: int = 6,
        normaliser: str = "max",
        exact_bytes: bool = True,
    ) -> None:
        _check_knobs(lam, bits, group_size, normaliser)
        self.exchange, self.lam = exchange, lam
        self.bits = tuple(sorted(bits))
        self.noise = np.array([noise_factor(b) for b in self.bits])
        self.row_bytes = exchange.sizes(self.bits, param_bytes if exact_bytes else 0)
        self.groups = [
            _cut(c.sender, c.receiver, c.weights, group_size, exact_bytes)
            for c in exchange.channels
            if len(c.weights)
        ]
        ends = [(g.sender, g.receiver) for g in self.groups]
        self.latency_s = np.array([links.pairs.latency_s[e] for e in ends])
        self.s_per_byte = np.array([links.pairs.s_per_byte[e] for e in ends])
        self.rounds = np.array([(r - s) % links.world_size for s, r in ends], dtype=np.int64)
        self._normalise(normaliser)

    def _normalise(self, normaliser: str) -> None:
        fewest = [np.full(len(g.weights), self.bits[0], np.uint8) for g in self.groups]
        most = [np.full(len(g.weights), self.bits[-1], np.uint8) for g in self.groups]
        self.v_worst, self.v_best = self.variance(fewest), self.variance(most)
        self.t_worst, self.t_best = self.seconds(most), self.seconds(fewest)
        if normaliser == "min":
            times = self.channel_seconds(fewest)
            self.t_best = sum(float(times[self.rounds == r].min()) for r in np.unique(self.rounds))
        noise_span, time_span = self.v_worst - self.v_best, self.t_worst - self.t_best
        self.noise_price = self.lam / noise_span if noise_span > 0 else 0.0
        """Objective a unit of variance."""
        self.time_price = (1.0 - self.lam) / time_span if time_span > 0 else 0.0
        """Objective a second."""

    @property
    def decided(self) -> bool:
        """Whether the solution is trivial: bits cost no time, so all messages get the most."""
        return not self.groups or self.t_worst <= self.seconds(
            [np.full(len(g.weights), self.bits[0], np.uint8) for g in self.groups]
        )

    def channel_bytes(self, assignment: Sequence[NDArray[np.uint8]]) -> Ints:
        """Bytes of each channel, int64 [channels]."""
        table = np.zeros(33, dtype=np.int64)
        table[list(self.bits)] = self.row_bytes
        sizes = [(table[b] * g.priced_rows).sum() for b, g in zip(assignment, self.groups, strict=True)]
        return np.array(sizes, dtype=np.int64)

    def channel_seconds(self, assignment: Sequence[NDArray[np.uint8]]) -> Vector:
        """Seconds of each channel without contention, [channels]."""
        return self.latency_s + self.s_per_byte * self.channel_bytes(assignment)

    def seconds(self, assignment: Sequence[NDArray[np.uint8]]) -> float:
        """T: sum over rounds of the slowest channel, in seconds."""
        times = self.channel_seconds(assignment)
        return sum(float(times[self.rounds == r].max()) for r in np.unique(self.rounds))

    def variance(self, assignment: Sequence[NDArray[np.uint8]]) -> float:
        """V: weighted variance of all groups."""
        table = np.zeros(33)
        table[list(self.bits)] = self.noise
        return sum(float((table[b] * g.weights).sum()) for b, g in zip(assignment, self.groups, strict=True))

    def objective(self, assignment: Sequence[NDArray[np.uint8]]) -> float:
        """Objective value of an assignment of bits to groups."""
        noise = self.noise_price * (self.variance(assignment) - self.v_best)
        return noise + self.time_price * (self.seconds(assignment) - self.t_best)

    def expand(self, assignment: Sequence[NDArray[np.uint8]]) -> dict[tuple[int, int], NDArray[np.uint8]]:
        """Bits of messages by (sender, receiver), in send order; includes channels without messages."""
        empty = np.zeros(0, dtype=np.uint8)
        found = {(c.sender, c.receiver): empty for c in self.exchange.channels}
        for bits, group in zip(assignment, self.groups, strict=True):
            found[group.sender, group.receiver] = group.expand(bits)
        return found


def _check_knobs(lam: float, bits: Sequence[int], group_size: int, normaliser: str) -> None:
    if not 0.0 <= lam <= 1.0:
        raise PlanError(f"lam is {lam}; expected 0 (only time counts) to 1 (only noise counts)")
    if not bits or not set(bits) <= set(BITS) or len(set(bits)) != len(bits):
        raise PlanError(f"bits are {tuple(bits)}; expected different widths of {BITS}")
    if group_size < 1:
        raise PlanError(f"group_size is {group_size}; expected at least 1 message")
    if normaliser not in ("max", "min"):
        raise PlanError(f"normaliser is {normaliser!r}; expected 'max' or 'min'")


def _cut(sender: int, receiver: int, weights: Vector, group_size: int, exact_bytes: bool) -> Groups:
    order = np.argsort(-weights, kind="stable")
    starts = np.arange(0, len(weights), group_size)
    rows = np.full(len(starts), group_size, dtype=np.int64)
    if exact_bytes:
        rows[-1] = len(weights) - starts[-1]
    return Groups(sender, receiver, order, np.add.reduceat(weights[order], starts), rows, group_size)


def plan_by_exchange(
    planner: str,
    solve: Callable[[BitWidthProgram], list[NDArray[np.uint8]]],
    problem: BitWidthProblem,
    *,
    lam: float = 0.5,
    bits: Sequence[int] = (2, 4, 8),
    group_size: int = 100,
    normaliser: str = "max",
    exact_bytes: bool = True,
    seed: int = 0,
) -> BitWidthPlan:
    """Choose bit widths by solving the program of every exchange in sequence.

    Args:
        planner: Name of the planner, recorded in the plan.
        solve: Solver that returns the bits of each channel's groups, uint8 [groups].
        problem: Messages, weights and costs.
        lam: Weight of the noise against the time, in [0, 1].
        bits: Allowed bit widths.
        group_size: Messages that share a bit width.
        normaliser: "max" or "min", as in `BitWidthProgram`.
        exact_bytes: Whether to charge the actual bytes of short groups and of row parameters.
        seed: Recorded in the plan.

    Raises:
        PlanError: A weight or an option is invalid, the problem has no costs, or `solve` finds no solution.
    """
    links = problem.priced.links
    problem.validate()
    found = {}
    for exchange in problem.exchanges:
        program = BitWidthProgram(
            exchange,
            links,
            lam=lam,
            bits=bits,
            group_size=group_size,
            param_bytes=problem.param_bytes,
            normaliser=normaliser,
            exact_bytes=exact_bytes,
        )
        for ends, chosen in program.expand(solve(program)).items():
            found[exchange.name, *ends] = chosen
    return make_plan(problem, found, planner=planner, seed=seed)
