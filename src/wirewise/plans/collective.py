"""The program that carries a collective out, how fast it should be, and how fast anything could be."""

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
    """Why no program can be faster than the bound: what must leave a set of ranks, and how wide its way out is."""

    cut: tuple[int, ...]
    """Ranks on the sending side; empty where `parts` say more together than any cut."""
    bandwidth_bytes_per_s: float
    """Sum over the links that leave them; of parts, over all that lead into them, or out of them."""
    parts: tuple[tuple[int, ...], ...] = ()
    """Sets of ranks that the links are counted between where there is no cut; empty if each rank is one."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that was looked at."""

    name: str
    predicted_s: float
    segments: int = 1


class CollectivePlan(Plan, frozen=True, kw_only=True, tag="collective"):
    """A program for one collective of one size on one topology."""

    family: ClassVar[str] = "collective"

    program: Program
    size_bytes: int
    """Bytes of the larger buffer of a rank, in or out."""
    topology: str
    """Name of the topology that it was made for."""
    bound_s: float
    """Lower bound of the whole network, in seconds: no algorithm is below the cut of the certificate. No latencies."""
    predicted_s: float
    """Simulated time of the program."""
    certificate: Certificate
    """Proof of `bound_s`."""
    bound_routes_s: float | None = None
    """Lower bound of all programs that send over the routes of this network. None if it is `bound_s`."""
    certificate_routes: Certificate | None = None
    """Proof of `bound_routes_s`."""
    hashed_s: float | None = None
    """Simulated time where switches hash the one connection of each pair to one of its equal paths: the worst of some
    hashes. None if switches have no choice, or the program is too large for it."""
    synthesis_s: float = 0.0
    """Time that the planner took."""
    candidates: tuple[Candidate, ...] = ()
    """What the planner chose among, the best first."""
    notes: tuple[str, ...] = ()
    """What the planner has to say, such as the gap of a search that its time limit ended."""

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
        """One row a step: messages, chunks, bytes, and the busiest sender's bytes."""
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
