"""Records of placements and of whole runs."""

from __future__ import annotations

import msgspec

__all__ = ["PlacementRecord", "PlacementRun"]


class PlacementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated and executed placement of tasks with an order of flows; times in seconds of an iteration."""

    method: str
    policy: str
    simulated_s: float
    measured_s: float
    """Median seconds over turns."""
    turns_s: tuple[float, ...]
    error: float
    """Relative error, simulated / measured - 1."""
    simulated_gain: float
    """Fraction of the first plan's time that is saved, in the simulation."""
    measured_gain: float
    """Fraction of the first plan's time that is saved, on the hosts."""
    lower_bound_s: float
    """Lower bound for any order of flows under this placement, in seconds."""
    crossing_bytes: float
    """Bytes between tasks on different hosts in an iteration."""
    latest: dict[str, tuple[str, float]]
    """Task of each kind, and flow, whose end deviated most from the simulation, with the deviation in seconds."""


class PlacementRun(msgspec.Struct, frozen=True, kw_only=True):
    """Placements of the same tasks, executed interleaved on hosts of a lab."""

    emulated: str
    """Description of the emulated parts of the run."""
    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    tasks: int
    iterations: int
    turns: int
    plans: dict[str, PlacementRecord]
    """Plans; the first is the baseline."""
    fastest: str
    """Name of the plan with the shortest measured iteration."""
