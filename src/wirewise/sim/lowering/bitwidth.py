"""Lowering of bit-width plans to one epoch of halo exchanges: pack, wire, compute and unpack of every rank.

Per exchange and rank: pack -> (wire || central) -> unpack -> marginal. A rank's wire phase starts when all its
senders have packed, and lasts `Links.wire_s`. Without overlap the central part waits for the unpacking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.cost import CodecCost, Links
from wirewise.errors import InputError
from wirewise.plans.bitwidth import BitWidthPlan
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import Prediction, prediction_of
from wirewise.sim.timeline import Span, Timeline

__all__ = ["ExchangeTimes", "lower_bitwidth"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ExchangeTimes:
    """Compute time of each rank overlapping with each exchange, in seconds; missing exchanges cost nothing."""

    central_s: Mapping[str, Vector] = field(default_factory=dict)
    """Seconds on central rows, which overlap the exchange, [P]."""
    marginal_s: Mapping[str, Vector] = field(default_factory=dict)
    """Seconds on rows that need halo rows, [P]."""

    def check(self, exchanges: Sequence[str], world_size: int) -> None:
        """Raise unless the times match these exchanges and ranks.

        Raises:
            InputError: An exchange is not in the plan, or has a wrong number of times; the message names it.
        """
        for name, seconds in (*self.central_s.items(), *self.marginal_s.items()):
            if name not in exchanges or np.shape(seconds) != (world_size,):
                raise InputError(
                    f"got {np.shape(seconds)} times of exchange {name!r}; expected one for each of {world_size} ranks "
                    f"and an exchange of the plan: {', '.join(exchanges)}"
                )

    def of(self, exchange: str, world_size: int) -> tuple[Vector, Vector]:
        """Central and marginal compute time by rank, in seconds."""
        none = np.zeros(world_size)
        return self.central_s.get(exchange, none), self.marginal_s.get(exchange, none)


def lower_bitwidth(
    plan: BitWidthPlan, job: Any, links: Any, *, costs: CodecCost | None = None, overlap: bool = True
) -> Prediction:
    """Simulate the exchanges of one epoch in order; see `predict`.

    Args:
        plan: Bit widths of all messages.
        job: `ExchangeTimes`. None if there is no compute.
        links: Links of the ranks.
        costs: Pack and unpack times. Defaults to zero.
        overlap: Whether central rows are computed during the exchange.
    """
    compute = ExchangeTimes() if job is None else expect("job", job, ExchangeTimes, plan)
    table, codec, ranks = expect("links", links, Links, plan), costs or CodecCost(), plan.world_size
    same_ranks(plan, table.world_size, "the links are those of")
    compute.check(plan.exchanges, ranks)
    clock = np.zeros(ranks)
    spans: list[Span] = []
    for name in plan.exchanges:
        pack, unpack = _codec_s(plan, name, codec)
        central, marginal = compute.of(name, ranks)
        size = plan.bytes_matrix(name)
        packed = clock + pack
        senders = np.where(size > 0, packed[:, None], -np.inf).max(axis=0, initial=-np.inf)
        start = np.maximum(packed, senders)
        arrived = start + table.wire_s(size)
        computed = packed + central if overlap else packed
        ready = np.maximum(arrived, computed)
        unpacked = ready + unpack
        begins = packed if overlap else unpacked
        free = unpacked if overlap else unpacked + central
        phases = {
            "pack": (clock, packed),
            "wire": (start, arrived),
            "central": (begins, begins + central),
            "unpack": (ready, unpacked),
            "marginal": (free, free + marginal),
        }
        spans += _spans(name, phases)
        clock = free + marginal
    timeline = Timeline(spans=tuple(spans), world_size=ranks)
    return prediction_of(plan, "epoch", timeline, float(clock.max(initial=0.0)))


def _codec_s(plan: BitWidthPlan, exchange: str, codec: CodecCost) -> tuple[Vector, Vector]:
    """Seconds that each rank packs and unpacks."""
    pack, unpack = np.zeros(plan.world_size), np.zeros(plan.world_size)
    for channel in plan.of(exchange):
        pack[channel.sender] += codec.pack_s(channel.counts, channel.width)
        unpack[channel.receiver] += codec.unpack_s(channel.counts, channel.width)
    return pack, unpack


def _spans(exchange: str, phases: Mapping[str, tuple[Vector, Vector]]) -> list[Span]:
    """Spans of one exchange; nothing that takes no time."""
    found = []
    for phase, (start, end) in phases.items():
        for rank, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
            if b > a:
                found.append(Span(rank=rank, phase=phase, exchange=exchange, start_s=a, end_s=b))
    return found
