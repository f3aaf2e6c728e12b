"""Problem of dPRO: the modules of a model in data-parallel training, and the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from wirewise.cost.link import LinkCost
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim.data_parallel import BucketTransfer, LayerCost, data_parallel_step
from wirewise.sim.recorded import modules_of_flows, modules_of_trace
from wirewise.sim.step_replay import replay
from wirewise.trace.arrays import Dataflow
from wirewise.trace.modules import ModuleTrace
from wirewise.trace.records import Trace

__all__ = ["FusionProblem", "from_flows", "from_trace"]


@dataclass(frozen=True, kw_only=True)
class FusionProblem(ModuleTrace):
    """Module trace, and the links used by its gradients.

    Raises:
        InputError: Raised by `ModuleTrace`, or a rank is on a host that the links lack.
    """

    links: Links

    def __post_init__(self) -> None:
        ModuleTrace.__post_init__(self)
        if max(self.hosts) >= self.links.hosts:
            raise InputError(f"hosts are {list(self.hosts)}; expected a rank or more on hosts of the links")

    @classmethod
    def of(cls, job: ModuleTrace, links: Links) -> FusionProblem:
        """Build the problem of a job on these links."""
        return cls(**{one.name: getattr(job, one.name) for one in fields(ModuleTrace)}, links=links)

    @cached_property
    def slowest(self) -> int:
        """Rank with the longest compute time."""
        return int(np.argmax(self.slowdown)) if len(self.slowdown) else 0

    @cached_property
    def factor(self) -> float:
        """Slowdown of the slowest rank."""
        return float(self.slowdown[self.slowest]) if len(self.slowdown) else 1.0

    @cached_property
    def wire(self) -> LinkCost:
        """Cost of an all-reduce without contention."""
        seconds = []
        for size in (1e6, 2e6):
            layers, sent = [LayerCost("", 0.0, 0.0, size)], [BucketTransfer(0, size)]
            flow = data_parallel_step(layers, self.hosts, transfers=sent, algorithm=self.algorithm)
            seconds.append(replay(flow, self.links).step_s)
        per_byte = (seconds[1] - seconds[0]) / 1e6
        return LinkCost(latency_s=max(seconds[0] - 1e6 * per_byte, 0.0), s_per_byte=per_byte)


def from_trace(trace: Trace, links: Links | None = None) -> FusionProblem:
    """Build the problem of a recorded run; arguments and errors as in `sim.recorded.modules_of_trace`."""
    return FusionProblem.of(*modules_of_trace(trace, links))


def from_flows(flows: Sequence[Dataflow], links: Links, **rest: Any) -> FusionProblem:
    """Build the problem of recorded steps; arguments and errors as in `sim.recorded.modules_of_flows`."""
    return FusionProblem.of(modules_of_flows(flows, links, **rest), links)
