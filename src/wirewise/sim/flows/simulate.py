"""Simulation of mini-batch training iterations under a placement, and lower bounds of their time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans.placement import FlowPolicy
from wirewise.sim.flows.core import FlowRun, longest_path_s, run
from wirewise.sim.flows.graph import expand
from wirewise.sim.flows.rates import POLICIES
from wirewise.sim.timeline import Span, Timeline
from wirewise.trace.tasks import TaskSet

__all__ = ["FlowSimulator", "PlacementBounds"]

Ints = NDArray[np.int64]


class PlacementBounds(NamedTuple):
    """Lower bounds for any order of flows under a placement, in seconds; the largest one holds."""

    interface_s: float
    """Bytes of the busiest direction of an interface over its rate."""
    execution_s: float
    """Executions of the busiest task."""
    path_s: float
    """Longest chain, with every flow at the full rate of its interfaces."""

    @property
    def seconds(self) -> float:
        """Largest of the three bounds, in seconds."""
        return max(self)


class FlowSimulator:
    """Simulator of placements of the same tasks on the same hosts.

    Fluid model: a flow has a rate limited by interfaces alone, without latency; tasks of one host do not slow each
    other down, as placements respect their resources.

    Args:
        tasks: Tasks with times and bytes of every iteration, common to all placements.
        links: Links of the hosts.
    """

    def __init__(self, tasks: TaskSet, links: Links) -> None:
        self.tasks, self.links = tasks, links
        self.graph = expand(tasks)
        self.capacity = np.concatenate([links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s])
        self._steps = tasks.iterations

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Kind and name of each task, then of each flow, in op order, with `iterations` ops each."""
        flows = [("flow", f"{flow.source} to {flow.target}") for flow in self.tasks.flows]
        return [*((task.kind, task.name) for task in self.tasks.tasks), *flows]

    def run(self, placement: Ints, policy: FlowPolicy = "iter", *, record: bool = False) -> FlowRun:
        """Simulate a placement.

        Args:
            placement: Host of each task, [T].
            policy: How flows share interfaces.
            record: Whether to record the rates.

        Raises:
            InputError: The policy is unknown, the number of hosts is wrong, or a host does not exist.
        """
        if policy not in POLICIES:
            raise InputError(f"unknown flow policy {policy!r}; expected one of: {', '.join(POLICIES)}")
        found: FlowRun = run(
            self.graph, self._checked(placement), self.capacity, POLICIES.index(policy), record
        )
        return found

    def seconds(self, placement: Ints, policy: FlowPolicy = "iter") -> float:
        """Time of all iterations, in seconds."""
        return float(self.run(placement, policy).end_s.max())

    def bounds(self, placement: Ints) -> PlacementBounds:
        """Lower bounds for any order of the flows."""
        placement, graph = self._checked(placement), self.graph
        crossing = placement[graph.source] != placement[graph.target]
        hosts = self.links.hosts
        loads = [
            np.bincount(placement[ends][crossing], weights=graph.size[crossing], minlength=hosts)
            for ends in (graph.source, graph.target)
        ]
        busy = np.bincount(graph.source, weights=graph.duration, minlength=len(placement))
        return PlacementBounds(
            float((np.concatenate(loads) / self.capacity).max()),
            float(busy.max()),
            float(longest_path_s(graph, placement, self.capacity)),
        )

    def competitive_ratio(self, placement: Ints) -> float:
        """Maximum number of flows that can share one direction of an interface, at least 1.

        An iteration's flows of a sampler can be concurrent with those of `prefetch` - 1 others; gradients and
        parameters cannot.
        """
        placement, graph, steps = self._checked(placement), self.graph, self._steps
        first = slice(len(placement) * steps, None, steps)
        source, target = graph.source[first], graph.target[first]
        ahead = np.array([self.tasks.tasks[task].kind in ("store", "sampler") for task in source], bool)
        most = np.where(ahead, min(self.tasks.prefetch, steps), 1.0)
        used = (placement[source] != placement[target]) & (
            graph.size.reshape(-1, steps)[len(placement) :] > 0
        ).any(axis=1)
        loads = [
            np.bincount(placement[end][used], weights=most[used], minlength=1) for end in (source, target)
        ]
        return float(max(1.0, *(load.max(initial=0.0) for load in loads)))

    def timeline(self, placement: Ints, run: FlowRun) -> Timeline:
        """Activity of each host: executions by kind of task, flows on the sending host."""
        lines, spans = self.lines, []
        for op in np.flatnonzero(run.end_s > run.start_s):
            phase, name = lines[op // self._steps]
            span = Span(
                rank=int(placement[self.graph.source[op]]),
                phase=phase,
                exchange=f"{name}, iteration {op % self._steps}",
                start_s=float(run.start_s[op]),
                end_s=float(run.end_s[op]),
            )
            spans.append(span)
        return Timeline(spans=tuple(spans), world_size=self.links.hosts)

    def _checked(self, placement: Ints) -> Ints:
        placement = np.asarray(placement, np.int64)
        hosts = self.links.hosts
        if placement.shape != (len(self.tasks.tasks),) or placement.min() < 0 or placement.max() >= hosts:
            raise InputError(
                f"got places {placement.tolist()[:8]} of shape {list(placement.shape)}; expected a host from 0 to "
                f"{hosts - 1} for each of {len(self.tasks.tasks)} tasks"
            )
        return placement
