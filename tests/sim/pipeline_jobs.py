"""Chains of equal modules and plans that give each stage one of them."""

from __future__ import annotations

from typing import Any

from wirewise.cost import Links
from wirewise.cost.stages import StageCosts
from wirewise.plans import StagePlan
from wirewise.trace import StageModule, StageTrace

RATE = 1000.0
"""Bytes a second of all links."""


def chain(modules: int, c: float = 0.0, forward_s: float = 1.0, backward_s: float = 2.0, **more: Any):
    """Modules whose output takes c seconds on a link."""
    given = {"saved_bytes": 100.0, "parameter_bytes": 0.0, **more}
    return StageTrace(
        modules=tuple(
            StageModule(
                name=f"m{number}",
                forward_s=(forward_s,),
                backward_s=(backward_s,),
                output_bytes=c * RATE,
                **given,
            )
            for number in range(modules)
        ),
        input_bytes=c * RATE,
    )


def one_each(style: str, stages: int, microbatches: int, **more: Any) -> StagePlan:
    """A module a stage."""
    names = [f"m{number}" for number in range(stages)]
    return StagePlan.from_cuts(names, range(1, stages), style=style, microbatches=microbatches, **more)


def costs_of(plan: StagePlan, job: StageTrace) -> StageCosts:
    return StageCosts.of(job, [stage.modules for stage in plan.stages], plan.microbatch_size)


def links(ranks: int, **more: Any) -> Links:
    return Links.uniform(ranks, RATE, **more)
