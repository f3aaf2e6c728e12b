"""Prediction: time of a unit of a job under a plan, and its breakdown."""

from __future__ import annotations

import msgspec
import numpy as np

from wirewise.notebooks import table_html
from wirewise.plans.base import Plan
from wirewise.sim.breakdown import Breakdown, breakdown_of, mean_breakdown, union
from wirewise.sim.timeline import Timeline

__all__ = ["Prediction", "prediction_of"]

COMMUNICATING = frozenset({"communication", "wire", "ids", "rows", "flow", "message", "restore"})
"""Phases in which bytes are sent."""
IDLE = frozenset({"detect", "fence", "regroup"})
"""Phases of a recovery in which a rank waits; all others keep it busy."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted step, or other unit of work, of a job under a plan."""

    family: str
    """Family of the plan."""
    planner: str
    unit: str
    """Unit of `step_s`, such as "step", "epoch" or "batch"."""
    step_s: float
    breakdown: Breakdown
    """Breakdown of the mean rank; its parts add up to `step_s`."""
    timeline: Timeline
    source: str = "simulated"

    @property
    def classes(self) -> int:
        """Number of classes of equivalent ranks, each simulated once."""
        return len(self.timeline.all_classes)

    @property
    def phases_s(self) -> dict[str, float]:
        """Time that the mean rank spends in each phase, in seconds; phases may overlap."""
        names = dict.fromkeys(span.phase for span in self.timeline.spans)
        return {name: self.timeline.phase_s(name) for name in names}

    def summary(self) -> str:
        """Sentence, and one line per phase."""
        parts, ranks = self.breakdown, f"{self.timeline.world_size} ranks"
        if self.classes < self.timeline.world_size:
            ranks += f" (classes of ranks that do the same: {self.classes})"
        lines = [
            f"{self.source}: {self.unit} of {ranks} under the {self.family} plan by {self.planner!r} takes "
            f"{_ms(self.step_s)}: {_ms(parts.compute_s)} compute, {_ms(parts.exposed_communication_s)} exposed "
            f"communication, {_ms(parts.wait_s)} waiting; {_ms(parts.overlapped_communication_s)} of communication "
            "beside compute"
        ]
        width = max((len(name) for name in self.phases_s), default=0)
        return "\n".join([*lines, *(f"  {n:<{width}}  {_ms(s)}" for n, s in self.phases_s.items())])

    def _repr_html_(self) -> str:
        phases = [[name, _ms(seconds)] for name, seconds in self.phases_s.items()]
        return table_html(self.summary().partition("\n")[0], ["phase", "time of the mean rank"], phases)


def prediction_of(plan: Plan, unit: str, timeline: Timeline, step_s: float | None = None) -> Prediction:
    """Build the prediction from a timeline.

    Args:
        plan: Plan that is simulated.
        unit: Unit that the timeline shows, such as a step.
        timeline: Timeline of all ranks.
        step_s: Duration of the unit, in seconds. Defaults to the time from the first span's start to the last one's
            end.
    """
    seconds = timeline.seconds if step_s is None else step_s
    return Prediction(
        family=plan.family,
        planner=plan.planner,
        unit=unit,
        step_s=seconds,
        breakdown=_broken_down(timeline, seconds),
        timeline=timeline,
    )


def _broken_down(timeline: Timeline, step_s: float) -> Breakdown:
    found, weights = [], []
    for ranks in timeline.all_classes:
        own = timeline.of(ranks[0])
        busy, moved = (
            union(
                np.array(
                    [
                        (s.start_s, s.end_s)
                        for s in own
                        if s.phase not in IDLE and (s.phase in COMMUNICATING) == moving
                    ]
                ).reshape(-1, 2)
            )
            for moving in (False, True)
        )
        found.append(breakdown_of(busy, moved, step_s))
        weights.append(len(ranks))
    return mean_breakdown(found, weights)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
