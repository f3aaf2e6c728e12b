"""Program of a collective, its predicted time, and the lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import ClassVar

import msgspec

from wirewise.collective import Program, check
from wirewise.errors import PlanError, ProgramError
from wirewise.plans.base import Plan

__all__ = ["Candidate", "Certificate", "CollectivePlan"]


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proof of the lower bound: bytes that must leave a set of ranks, and the bandwidth out of it."""

    cut: tuple[int, ...]
    """Ranks on the sending side; empty if `parts` together give a tighter bound."""
    bandwidth_bytes_per_s: float
    """Total bandwidth of the links that leave them; for parts, of all links into them or out of them."""
    parts: tuple[tuple[int, ...], ...] = ()
    """Partition of the ranks whose links are counted if there is no cut; empty if each rank is a part."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Program that was considered."""

    name: str
    predicted_s: float
    segments: int = 1


class CollectivePlan(Plan, frozen=True, kw_only=True, tag="collective"):
    """Program for one collective of one size on one topology."""

    family: ClassVar[str] = "collective"

    program: Program
    size_bytes: int
    """Bytes of the larger buffer of a rank, in or out."""
    topology: str
    """Name of the topology it was planned for."""
    bound_s: float
    """Lower bound for any algorithm on the network, in seconds, by the certificate; latencies are not counted."""
    predicted_s: float
    """Simulated time of the program."""
    certificate: Certificate
    """Proof of `bound_s`."""
    bound_routes_s: float | None = None
    """Lower bound for programs that send over the routes of this network, in seconds. None if equal to `bound_s`."""
    certificate_routes: Certificate | None = None
    """Proof of `bound_routes_s`."""
    hashed_s: float | None = None
    """Simulated time with ECMP, in which switches hash each pair's connection to one of its equal-cost paths: the worst
    of several hashes. None if paths are unique, or the program is too large."""
    synthesis_s: float = 0.0
    """Duration of the planning, in seconds."""
    candidates: tuple[Candidate, ...] = ()
    """Candidates of the planner, the best first."""
    notes: tuple[str, ...] = ()
    """Notes of the planner, such as the optimality gap of a search that hit its time limit."""

    @property
    def collective(self) -> str:
        """Name of the collective."""
        return self.program.collective

    def check_itself(self) -> None:
        """Raise if a figure is out of range or the program is wrong; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault in self._faults():
            raise PlanError(fault)
        try:
            check(self.program)
        except ProgramError as error:
            raise PlanError(f"{error} - at `$.program`; make the plan again") from error

    def _faults(self) -> Iterator[str]:
        if self.program.ranks != self.world_size:
            yield (
                f"the program is one of {self.program.ranks} ranks - at `$.program.ranks`; expected the plan's "
                f"world size {self.world_size}"
            )
        if self.size_bytes < 1:
            yield f"size_bytes is {self.size_bytes} - at `$.size_bytes`; expected at least 1"
        for name in ("bound_s", "bound_routes_s", "predicted_s", "hashed_s", "synthesis_s"):
            value = getattr(self, name)
            if value is not None and (not isfinite(value) or value < 0):
                yield f"{name} is {value} - at `$.{name}`; expected finite seconds of at least 0"
        if (self.bound_routes_s is None) != (self.certificate_routes is None):
            yield "bound_routes_s without certificate_routes, or the other way round - at `$.bound_routes_s`"
        for name in ("certificate", "certificate_routes"):
            proof = getattr(self, name)
            named = (*proof.cut, *(rank for part in proof.parts for rank in part)) if proof else ()
            beyond = [rank for rank in named if not 0 <= rank < self.world_size]
            if beyond:
                yield f"rank {beyond[0]} - at `$.{name}`; expected ranks below {self.world_size}"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per step: messages, chunks, bytes, and the busiest sender's bytes."""
        sizes = self.program.chunk_bytes(self.size_bytes)
        rows = []
        for step in range(self.program.steps):
            own = [t for t in self.program.transfers if t.step == step]
            sent: dict[int, float] = {}
            for t in own:
                sent[t.source] = sent.get(t.source, 0.0) + sizes[t.chunk]
            pairs = {(t.source, t.target) for t in own}
            busiest = max(sent.values(), default=0.0)
            rows.append(
                [
                    str(step),
                    str(len(pairs)),
                    str(len(own)),
                    f"{sum(sent.values()) / 1e6:.3f}",
                    f"{busiest / 1e6:.3f}",
                ]
            )
        return ["step", "messages", "chunks", "MB", "MB of the busiest rank"], rows
