"""Bit-width assignment problem: a width for every halo message, with a weight for the effect of its noise.

A row of D values quantized to b <= 8 bits between its minimum and maximum has the expected squared error
(D/6) (max-min)^2 / (2^b-1)^2. A message's weight is this without the last factor, summed over the traced
epochs and multiplied by the squared aggregation coefficients of the edges that it feeds: w = S * sum_t
(D/6) (max-min)^2. So message k at b bits adds w_k * c_b with c_b = 1/(2^b-1)^2 (c_1 = 1), nothing at 32
bits, and at 16 bits (bfloat16) a noise that is relative to the values, not to their range: BFLOAT16_NOISE *
energy, energy = S * sum_t |x|^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wirewise.cost import ExchangeCosts
from wirewise.errors import PlanError
from wirewise.planners.arrays import Vector
from wirewise.plans import BITS, BitWidthPlan, ChannelBits, row_bytes

__all__ = [
    "BFLOAT16_NOISE",
    "BitWidthProblem",
    "ChannelProblem",
    "ExchangeProblem",
    "Key",
    "make_plan",
    "noise_factor",
    "own_channels",
    "sigma_of",
]

Key = tuple[str, int, int]
"""Exchange, sender and receiver of a channel."""

BFLOAT16_NOISE = 2.0**-14 / 12.0 * 0.75 / (2.0 * np.log(2.0))
"""Mean squared relative rounding error: a step of 2^-7 of the power of two below a log-uniform mantissa."""

_ENERGY_SHARE = 0.5
"""|x|^2 over (D/6)(max-min)^2 of values spread evenly around zero; used where energies are not traced."""


def noise_factor(bits: int) -> float:
    """Noise factor c_b of a quantized row; for 16 bits the factor of energies, 0 for 32 bits."""
    if bits == 32:
        return 0.0
    return _ENERGY_SHARE * BFLOAT16_NOISE if bits == 16 else 1.0 / (2.0**bits - 1.0) ** 2


@dataclass(frozen=True, kw_only=True)
class ChannelProblem:
    """Messages that one rank sends to another in one exchange."""

    sender: int
    receiver: int
    weights: Vector
    """Weight of each message in send order, [n]."""
    energies: Vector | None = None
    """Weighted sum of squares of each message, for the noise of bfloat16, [n]. Defaults to half the weights."""

    def noise(self, bits: NDArray[np.uint8]) -> float:
        """Expected weighted variance at the given bits, uint8 [n]."""
        factor = np.zeros(33)
        factor[list(BITS)] = [noise_factor(b) for b in BITS]
        total = factor[bits] * self.weights
        if self.energies is not None:
            total = np.where(bits == 16, BFLOAT16_NOISE * self.energies, total)
        return float(total.sum())


@dataclass(frozen=True, kw_only=True)
class ExchangeProblem:
    """One layer's messages in one direction."""

    name: str
    width: int
    channels: Sequence[ChannelProblem]

    def sizes(self, bits: Sequence[int], param_bytes: int) -> NDArray[np.int64]:
        """Bytes of a row at each bit width, [widths]."""
        return np.array([row_bytes(b, self.width, param_bytes) for b in bits], dtype=np.int64)

    def weight_moments(self) -> Vector:
        """[count, sum, sum of squares] of the logs of the positive weights, and the sum of the weights."""
        moments = np.zeros(4)
        for channel in self.channels:
            logs = np.log(channel.weights[channel.weights > 0])
            moments += [len(logs), logs.sum(), (logs * logs).sum(), channel.weights.sum()]
        return moments

    def weight_sigma(self) -> float:
        """Log standard deviation of the positive weights; adaptive bits pay above about 1.2."""
        return sigma_of(self.weight_moments())


def sigma_of(moments: Vector) -> float:
    """Compute the standard deviation from [count, sum, sum of squares, ...]."""
    count, total, squares = moments[:3].tolist()
    return float(np.sqrt(max(squares / count - (total / count) ** 2, 0.0))) if count else 0.0


@dataclass(frozen=True, kw_only=True)
class BitWidthProblem:
    """All exchanges of an epoch; for planning by a single rank, its own channels only."""

    exchanges: Sequence[ExchangeProblem]
    world_size: int
    param_bytes: int = 6
    costs: ExchangeCosts | None = None
    """Costs of links and codec. None if messages come with links, or are those of one rank."""

    @property
    def priced(self) -> ExchangeCosts:
        """Costs of the problem; raises if it has none.

        Raises:
            PlanError: The problem has none.
        """
        if self.costs is None:
            raise PlanError(
                "the problem has no costs; make it with BitWidthProblem(..., costs=ExchangeCosts(...)), or give "
                "its links"
            )
        return self.costs

    def validate(self) -> None:
        """Raise if the weights are invalid.

        Raises:
            PlanError: A name, channel or weight is invalid; the message names it.
        """
        names = [e.name for e in self.exchanges]
        if len(set(names)) != len(names):
            raise PlanError(f"exchanges are {names}; expected each name once")
        for exchange in self.exchanges:
            seen: set[tuple[int, int]] = set()
            for channel in exchange.channels:
                where = f"{exchange.name} {channel.sender} -> {channel.receiver}"
                ends = (channel.sender, channel.receiver)
                if ends in seen or ends[0] == ends[1] or not all(0 <= e < self.world_size for e in ends):
                    raise PlanError(
                        f"{where} is not one of the channels between {self.world_size} ranks, or comes "
                        "twice; list each ordered pair of different ranks at most once"
                    )
                seen.add(ends)
                for values in (channel.weights, channel.energies):
                    _check_values(values, len(channel.weights), where)

    def check_sender(self, rank: int) -> None:
        """Raise if a channel is sent by another rank.

        Raises:
            PlanError: A channel has another sender; the message names the channel.
        """
        for e in self.exchanges:
            for c in e.channels:
                if c.sender != rank:
                    raise PlanError(
                        f"{e.name} {c.sender} -> {c.receiver} was given to rank {rank}; give own channels"
                    )

    def messages(self) -> dict[Key, int]:
        """Number of messages of every channel."""
        return {(e.name, c.sender, c.receiver): len(c.weights) for e in self.exchanges for c in e.channels}


def own_channels(problem: BitWidthProblem, rank: int) -> BitWidthProblem:
    """Restrict a problem to the channels that one rank sends."""
    exchanges = [
        ExchangeProblem(name=e.name, width=e.width, channels=[c for c in e.channels if c.sender == rank])
        for e in problem.exchanges
    ]
    return BitWidthProblem(
        exchanges=exchanges, world_size=problem.world_size, param_bytes=problem.param_bytes
    )


def _check_values(values: Vector | None, count: int, where: str) -> None:
    if values is None:
        return
    if values.shape != (count,):
        raise PlanError(f"{where}: got {values.shape} values for {count} messages; expected one a message")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise PlanError(
            f"{where}: weight of message {bad[0]} is {values[bad[0]]}; expected a finite number >= 0, "
            "look for NaN or infinity in the traced rows"
        )


def make_plan(
    problem: BitWidthProblem,
    bits: Mapping[Key, NDArray[np.uint8]],
    *,
    planner: str,
    seed: int = 0,
    epoch: int = 0,
    forward_covers_backward: bool = False,
) -> BitWidthPlan:
    """Build the plan of a decision, with predicted wire seconds, noise and sigma by exchange.

    Raises:
        PlanError: The problem has no costs.
    """
    channels, noise = [], {}
    for exchange in problem.exchanges:
        noise[exchange.name] = 0.0
        for c in exchange.channels:
            chosen = bits[exchange.name, c.sender, c.receiver]
            noise[exchange.name] += c.noise(chosen)
            channels.append(
                ChannelBits(
                    exchange=exchange.name,
                    sender=c.sender,
                    receiver=c.receiver,
                    width=exchange.width,
                    bits=chosen.astype(np.uint8).tobytes(),
                )
            )
    return BitWidthPlan(
        world_size=problem.world_size,
        planner=planner,
        seed=seed,
        epoch=epoch,
        channels=tuple(channels),
        param_bytes=problem.param_bytes,
        forward_covers_backward=forward_covers_backward,
        predicted_s=_predict(problem, bits),
        noise=noise,
        weight_sigma={e.name: e.weight_sigma() for e in problem.exchanges},
    )


def _predict(problem: BitWidthProblem, bits: Mapping[Key, NDArray[np.uint8]]) -> dict[str, float]:
    predicted = {}
    for exchange in problem.exchanges:
        size = np.zeros((problem.world_size, problem.world_size))
        by_bits = np.zeros(33)
        by_bits[list(BITS)] = exchange.sizes(BITS, problem.param_bytes)
        for c in exchange.channels:
            size[c.sender, c.receiver] = by_bits[bits[exchange.name, c.sender, c.receiver]].sum()
        predicted[exchange.name] = float(problem.priced.links.wire_s(size).max(initial=0.0))
    return predicted
