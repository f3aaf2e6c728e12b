"""Outcome of a job under agents: its recoveries, and the times of their phases."""

from __future__ import annotations

import msgspec

from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.generations import Generation, PhaseReached

__all__ = ["Recoveries", "RecoveryTimes"]


class RecoveryTimes(msgspec.Struct, kw_only=True):
    """Times of one recovery, in seconds since 1970; 0 for phases not reached."""

    generation: int
    ranks: tuple[int, ...]
    """Ranks whose process was lost; empty if ranks were added."""
    causes: tuple[str, ...]
    seen_s: float
    """Time at which an agent detected the first loss."""
    noticed_s: float = 0.0
    """Time at which the last rank was interrupted; the following times are also those of the last rank."""
    regrouped_s: float = 0.0
    decided_s: float = 0.0
    restored_s: float = 0.0
    resumed_s: float = 0.0
    committed_s: float = 0.0
    """Time at which all ranks had committed the first new step."""
    step: int = -1
    """Step from which training resumed."""
    strategy: str = ""
    lost_iterations: int = 0
    """Maximum over ranks of committed steps that had to be recomputed."""
    replayed_iterations: int = 0
    """Number of steps recomputed from logs."""
    equal: bool = True
    """Whether replicas had the same digest afterwards."""


class Recoveries(msgspec.Struct, kw_only=True):
    """Recoveries of a job."""

    world_size: int
    generations: int = 0
    step: int = -1
    """Newest step reported as committed."""
    recoveries: list[RecoveryTimes] = []
    refused: list[str] = []
    """Reasons why processes were refused."""

    def begin(self, generation: Generation) -> None:
        """Record the start of a generation; the second and later ones are recoveries."""
        self.generations = generation.number
        if generation.number > 1:
            self.recoveries.append(
                RecoveryTimes(
                    generation=generation.number,
                    ranks=generation.dead,
                    causes=tuple(generation.notes.values()),
                    seen_s=generation.since_s or clock_s(),
                )
            )

    def note(self, event: PhaseReached) -> None:
        """Record the progress of a recovery."""
        if event.phase == "committed":
            self.step = max(self.step, event.step)
        for one in self.recoveries:
            if one.generation == event.generation:
                field = f"{event.phase}_s"
                setattr(one, field, max(getattr(one, field), event.at_s))
                one.step = event.step if event.phase == "restored" else one.step
                one.strategy = event.strategy or one.strategy
                one.lost_iterations = max(one.lost_iterations, event.lost)
                one.replayed_iterations = max(one.replayed_iterations, event.computed)
