"""What a job under agents came to: its recoveries, and when each phase of them was reached."""

from __future__ import annotations

import msgspec

from wirewise.runtime.recovery.clock import clock_s
from wirewise.runtime.recovery.generations import Generation, PhaseReached

__all__ = ["Recovered", "Recoveries"]


class Recovered(msgspec.Struct, kw_only=True):
    """One recovery; times are seconds since 1970, 0 where it did not come to that."""

    generation: int
    ranks: tuple[int, ...]
    """Ranks whose process was lost; none where ranks were added."""
    causes: tuple[str, ...]
    seen_s: float
    """When the first loss was noticed by an agent."""
    noticed_s: float = 0.0
    """When the last rank had left what it was doing; further times are those of the last rank likewise."""
    regrouped_s: float = 0.0
    decided_s: float = 0.0
    restored_s: float = 0.0
    resumed_s: float = 0.0
    committed_s: float = 0.0
    """When the first new step was committed by all."""
    step: int = -1
    """Step that training went on from."""
    strategy: str = ""
    lost_iterations: int = 0
    """Most steps of any rank that were committed and had to be computed again."""
    replayed_iterations: int = 0
    """Steps that were computed again from logs."""
    equal: bool = True
    """Whether replicas had the same digest afterwards."""


class Recoveries(msgspec.Struct, kw_only=True):
    """What a job came to."""

    world_size: int
    generations: int = 0
    step: int = -1
    """Newest step that was told to be committed."""
    recoveries: list[Recovered] = []
    refused: list[str] = []
    """Why processes were not taken in."""

    def begin(self, generation: Generation) -> None:
        """Note that a generation begins, the second and later ones as recoveries."""
        self.generations = generation.number
        if generation.number > 1:
            self.recoveries.append(
                Recovered(
                    generation=generation.number,
                    ranks=generation.dead,
                    causes=tuple(generation.notes.values()),
                    seen_s=generation.since_s or clock_s(),
                )
            )

    def note(self, event: PhaseReached) -> None:
        """Note how far a recovery is."""
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
