"""One epoch of halo exchanges under a bit-width plan: when every rank packs, waits, computes and unpacks.

Per exchange and rank: pack -> (wire || central) -> unpack -> marginal. A rank's wire starts when all who
send to it have packed, and lasts what `Links.wire_s` says. Without overlap the central part waits for
the unpacking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost import CodecCost, ExchangeCosts
from wirewise.errors import PlanError
from wirewise.plans import BitWidthPlan
from wirewise.sim.timeline import Span, Timeline

__all__ = ["ComputeTimes", "EpochPrediction", "predict_epoch", "simulate_epoch"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ComputeTimes:
    """Seconds that each rank computes beside each exchange; missing exchanges cost nothing."""

    central_s: Mapping[str, Vector] = field(default_factory=dict)
    """On own rows alone, [P]: can go on while bytes are on the wire."""
    marginal_s: Mapping[str, Vector] = field(default_factory=dict)
    """On rows that need halo rows, [P]."""

    def of(self, exchange: str, world_size: int) -> tuple[Vector, Vector]:
        """Central and marginal seconds by rank."""
        none = np.zeros(world_size)
        return self.central_s.get(exchange, none), self.marginal_s.get(exchange, none)


class EpochPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a simulated epoch, and where the mean rank spends them."""

    epoch_s: float
    pack_s: float
    wire_s: float
    unpack_s: float
    central_s: float
    marginal_s: float
    hidden_s: float
    """Wire time during which the mean rank computes."""
    size_bytes: int
    """Payload of all ranks."""
    source: str = "simulated"

    def summary(self) -> str:
        """One line for people, labelled as simulated."""
        parts = [f"{name[:-2]} {getattr(self, name) * 1e3:.3f}" for name in self.__struct_fields__[1:7]]
        return (
            f"{self.source}: epoch {self.epoch_s * 1e3:.3f} ms ({', '.join(parts)} ms), "
            f"{self.size_bytes / 1e6:.3f} MB"
        )


def simulate_epoch(
    plan: BitWidthPlan, costs: ExchangeCosts, compute: ComputeTimes | None = None, *, overlap: bool = True
) -> Timeline:
    """Simulate the exchanges of one epoch in their order.

    Raises:
        PlanError: The costs are those of another number of ranks.
    """
    ranks = plan.world_size
    if costs.links.world_size != ranks:
        raise PlanError(
            f"the plan is for {ranks} ranks, the costs are those of {costs.links.world_size}; measure the "
            "links of this job"
        )
    compute = compute or ComputeTimes()
    clock = np.zeros(ranks)
    spans: list[Span] = []
    for name in plan.exchanges:
        pack, unpack = _codec_s(plan, name, costs.codec)
        central, marginal = compute.of(name, ranks)
        size = plan.bytes_matrix(name)
        packed = clock + pack
        senders = np.where(size > 0, packed[:, None], -np.inf).max(axis=0, initial=-np.inf)
        start = np.maximum(packed, senders)
        arrived = start + costs.links.wire_s(size)
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
    return Timeline(spans=tuple(spans), world_size=ranks)


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


def predict_epoch(
    plan: BitWidthPlan, costs: ExchangeCosts, compute: ComputeTimes | None = None, *, overlap: bool = True
) -> EpochPrediction:
    """Simulate an epoch and sum it up.

    Raises:
        PlanError: As `simulate_epoch`.
    """
    timeline = simulate_epoch(plan, costs, compute, overlap=overlap)
    hidden = 0.0
    wires = {(s.rank, s.exchange): s for s in timeline.spans if s.phase == "wire"}
    for span in timeline.spans:
        wire = wires.get((span.rank, span.exchange))
        if span.phase == "central" and wire is not None:
            hidden += max(min(span.end_s, wire.end_s) - max(span.start_s, wire.start_s), 0.0)
    return EpochPrediction(
        epoch_s=timeline.seconds,
        pack_s=timeline.phase_s("pack"),
        wire_s=timeline.phase_s("wire"),
        unpack_s=timeline.phase_s("unpack"),
        central_s=timeline.phase_s("central"),
        marginal_s=timeline.phase_s("marginal"),
        hidden_s=hidden / plan.world_size,
        size_bytes=sum(int(plan.bytes_matrix(name).sum()) for name in plan.exchanges),
    )
