"""Record of a run."""

from __future__ import annotations

import msgspec

from wirewise.results import IncrementalRecord

__all__ = ["IncrementalRun"]


class IncrementalRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of methods on the tasks of a growing graph."""

    dataset: str
    setting: str
    growth: str
    tasks: int
    classes_per_task: int
    budget: int
    """Nodes per class kept by rehearsal methods."""
    network: str = "loopback"
    """"slurm", or "loopback" where all ranks were on one machine."""
    hosts: int = 1
    workers: int
    seed: int
    methods: dict[str, IncrementalRecord]
