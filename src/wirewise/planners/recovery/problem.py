"""Problem of recovery planners, from measured figures of a job or from a staged model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners import pipeline
from wirewise.planners.faces import expect_links
from wirewise.plans.stages import StagePlan
from wirewise.sim.lowering.stages import costs_of_plan
from wirewise.sim.pipelines import steady_update
from wirewise.sim.recovery import sources_of
from wirewise.trace.recovery import ProtectedStage, RecoveryTrace, StageMessages
from wirewise.trace.stages import StageTrace

__all__ = ["RecoveryProblem", "problem_of", "problem_of_modules", "trace_of_pipeline"]

_MTBF_S = 3600.0
"""Seconds between failures where nobody says how many."""
_PRICES = {"memory": 1.0, "disk": 0.1}
"""Bytes of the budget that a byte of a log takes where nobody says it."""


@dataclass(frozen=True)
class RecoveryProblem:
    """Job, its failure rate, and the budgets of logs and spares.

    Raises:
        InputError: The links are of other ranks, or a figure is not positive.
    """

    trace: RecoveryTrace
    links: Links
    mtbf_s: float = _MTBF_S
    """Mean training time between failures, in seconds."""
    spare_bytes: float = np.inf
    """Memory of a spare to recompute a group of stages, in bytes."""
    log_bytes: float = np.inf
    """Budget of all logs between two checkpoints, in bytes."""
    prices: Mapping[str, float] = field(default_factory=lambda: _PRICES)
    """Budget bytes charged per byte, by tier of the log."""

    def __post_init__(self) -> None:
        if self.links.world_size != self.trace.world_size:
            raise InputError(
                f"the job has {self.trace.world_size} ranks, the links {self.links.world_size}; expected as many"
            )
        for name in ("mtbf_s", "spare_bytes", "log_bytes"):
            if not getattr(self, name) > 0 or (name == "mtbf_s" and not np.isfinite(self.mtbf_s)):
                raise InputError(f"{name} is {getattr(self, name)}; expected a figure above 0")
        if {*self.prices} != {*_PRICES} or not all(0 <= one < np.inf for one in self.prices.values()):
            raise InputError(
                f"prices are {dict(self.prices)}; expected finite figures of at least 0 for memory and disk"
            )

    @cached_property
    def unreplicated_stages(self) -> tuple[int, ...]:
        """Stages whose state can be lost with a rank, as no replica survives elsewhere."""
        return tuple(
            number
            for number, stage in enumerate(self.trace.stages)
            if not all(sources_of(stage.ranks, rank, self.links) for rank in stage.ranks)
        )


def problem_of(
    trace: RecoveryTrace,
    links: Links,
    *,
    mtbf_s: float = _MTBF_S,
    spare_bytes: float | None = None,
    log_bytes: float | None = None,
    disk_price: float = _PRICES["disk"],
) -> RecoveryProblem:
    """Build the problem of a measured job on its links.

    Args:
        trace: Figures of the job.
        links: Links between its ranks.
        mtbf_s: Mean training time between failures, in seconds.
        spare_bytes: Memory in which a spare recomputes a group of stages, in bytes. Defaults to no limit.
        log_bytes: Budget of all logs between two checkpoints, in bytes of shared memory. Defaults to no limit.
        disk_price: Budget bytes charged per byte on disk.
    """
    return RecoveryProblem(
        trace,
        expect_links(links),
        mtbf_s,
        np.inf if spare_bytes is None else spare_bytes,
        np.inf if log_bytes is None else log_bytes,
        {"memory": 1.0, "disk": disk_price},
    )


def problem_of_modules(
    trace: StageTrace, links: Links, *, pipelined: StagePlan | None = None, **conditions: float | None
) -> RecoveryProblem:
    """Build the problem of a model trained in stages, with default figures of recovery.

    Args:
        trace: Modules of the model.
        links: Links between the ranks.
        pipelined: Plan of its stages. Defaults to one with the fastest update.
        conditions: Further arguments of `problem_of`.
    """
    links = expect_links(links)
    plan = pipeline.PLANNERS["1f1b"](trace, links) if pipelined is None else pipelined
    if not isinstance(plan, StagePlan):
        raise InputError(f"got a {type(plan).__name__} as the plan of the stages; expected a StagePlan")
    return problem_of(trace_of_pipeline(trace, plan, links), links, **conditions)  # type: ignore[arg-type]


def trace_of_pipeline(trace: StageTrace, plan: StagePlan, links: Links) -> RecoveryTrace:
    """Figures of a pipeline: compute, state and messages of an update; recovery times keep their defaults.

    Args:
        trace: Modules of the model.
        plan: Plan of its stages.
        links: Links between its ranks.

    Raises:
        PlanError: Stages span several ranks, or a position has several stages.
    """
    if any(len(own) > 1 for replicas in plan.ranks for own in replicas) or plan.positions < len(plan.stages):
        raise PlanError(
            f"plan {plan.planner!r} has stages of several ranks, or several stages at a position - at `$.ranks`; "
            "recovery is planned where each rank has one stage"
        )
    costs, count = costs_of_plan(plan, trace), plan.microbatches
    _, begin_s, end_s = steady_update(plan, costs, links)
    again = [costs.forward_s[n] if stage.recompute else 0.0 for n, stage in enumerate(plan.stages)]
    by_place = sorted(range(len(plan.stages)), key=lambda n: plan.stages[n].position)
    if by_place != list(range(len(plan.stages))):
        raise PlanError(
            f"plan {plan.planner!r} has stages in another order than positions - at `$.stages`; expected the same"
        )
    return RecoveryTrace(
        stages=tuple(
            ProtectedStage(
                ranks=tuple(own[0] for own in plan.ranks[n]),
                compute_s=float(count * (costs.forward_s[n] + costs.backward_s[n] + again[n])),
                optimizer_s=float(costs.optimizer_s[n]),
                state_bytes=float(
                    costs.parameter_bytes[n] * (plan.weight_versions + costs.state_factor - 1.0)
                ),
                gradient_bytes=float(costs.parameter_bytes[n]),
            )
            for n in range(len(plan.stages))
        ),
        messages=tuple(
            StageMessages(source=source, target=target, size_bytes=count * size)
            for edge, size in costs.edge_bytes.items()
            if size
            for source, target in (edge, edge[::-1])
        ),
        step_s=end_s - begin_s,
        microbatches=count,
        model=trace.model,
    )
