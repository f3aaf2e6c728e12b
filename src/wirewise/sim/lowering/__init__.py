"""Lowering of plans to timelines: the effect of each family's record on its job.

A lowering takes every field of its record into account or refuses it by name; `predict` calls it.
"""

from __future__ import annotations

from collections.abc import Callable

from wirewise.sim.lowering.bitwidth import lower_bitwidth
from wirewise.sim.lowering.cache import lower_cache
from wirewise.sim.lowering.collective import lower_collective
from wirewise.sim.lowering.deployment import lower_deployment
from wirewise.sim.lowering.fusion import lower_fusion
from wirewise.sim.lowering.jobs import lower_jobs
from wirewise.sim.lowering.parallel import lower_parallel
from wirewise.sim.lowering.placement import lower_placement
from wirewise.sim.lowering.recovery import lower_recovery
from wirewise.sim.lowering.reshard import lower_reshard
from wirewise.sim.lowering.stages import lower_stages
from wirewise.sim.prediction import Prediction

__all__ = ["LOWERINGS"]

LOWERINGS: dict[str, Callable[..., Prediction]] = {
    "bitwidth": lower_bitwidth,
    "cache": lower_cache,
    "collective": lower_collective,
    "deployment": lower_deployment,
    "fusion": lower_fusion,
    "jobs": lower_jobs,
    "parallel": lower_parallel,
    "placement": lower_placement,
    "recovery": lower_recovery,
    "stages": lower_stages,
    "reshard": lower_reshard,
}
"""Lowerings by family: `(plan, job, links, *, measured conditions)` to a prediction."""
