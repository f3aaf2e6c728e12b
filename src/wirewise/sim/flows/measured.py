"""Executed tasks and flows, compared with their simulated times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.plans import PlacementPlan
from wirewise.sim.flows.core import FlowRun
from wirewise.sim.flows.simulate import FlowSimulator

__all__ = ["LineTimes", "OpTimes", "PlanComparison", "compare_plan"]


class OpTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Start and end of each op, in a whole run of a plan or a part of it, [ops]."""

    start_s: list[float]
    end_s: list[float]


class LineTimes(NamedTuple):
    """Times of a task or a flow between hosts, one per iteration, in seconds since the common start."""

    kind: str
    """Kind of the task, or "flow"."""
    name: str
    simulated: OpTimes
    """Earliest start and end of an execution or a flow."""
    measured: OpTimes

    @property
    def late_s(self) -> tuple[float, ...]:
        """Delay of each iteration's end relative to the simulation, in seconds."""
        pairs = zip(self.measured.end_s, self.simulated.end_s, strict=True)
        return tuple(measured_s - simulated_s for measured_s, simulated_s in pairs)


class PlanComparison(NamedTuple):
    """A plan, simulated and measured."""

    simulated_s: float
    """Simulated seconds of an iteration."""
    measured_s: float
    """Measured seconds of an iteration, median over turns."""
    all_s: tuple[float, ...]
    """Measured seconds of an iteration in each turn."""
    lines: tuple[LineTimes, ...]
    """Executing tasks and flows between hosts, in the median turn or the one just below."""

    @property
    def error(self) -> float:
        """Error of the simulated time: simulated / measured - 1."""
        return self.simulated_s / self.measured_s - 1.0

    def latest(self, kind: str) -> LineTimes | None:
        """Task or flow of a kind with the largest delay relative to the simulation. None if there is none."""
        lines = [line for line in self.lines if line.kind == kind]
        return max(lines, key=lambda line: max(map(abs, line.late_s)), default=None)


def compare_plan(
    simulator: FlowSimulator, plan: PlacementPlan, measured: Sequence[OpTimes]
) -> PlanComparison:
    """Compare simulated and measured times of an iteration, and of each task and flow.

    Args:
        simulator: Tasks on the hosts of the plan.
        plan: Placement that was executed.
        measured: Times of all ops in each run.
    """
    steps = simulator.tasks.iterations
    places = np.array([plan.places[task.name] for task in simulator.tasks.tasks])
    simulated = simulator.run(places, plan.policy)
    seconds = tuple(max(one.end_s) / steps for one in measured)
    turns = sorted(measured, key=lambda one: max(one.end_s))
    return PlanComparison(
        float(simulated.end_s.max()) / steps,
        statistics.median(seconds),
        seconds,
        tuple(_lines(simulator, places, simulated, turns[(len(turns) - 1) // 2])),
    )


def _lines(
    simulator: FlowSimulator, places: NDArray[np.int64], simulated: FlowRun, measured: OpTimes
) -> Iterator[LineTimes]:
    """Lines that take time."""
    graph, steps = simulator.graph, simulator.tasks.iterations
    takes = (graph.duration > 0) | ((graph.size > 0) & (places[graph.source] != places[graph.target]))
    for number, (kind, name) in enumerate(simulator.lines):
        ops = slice(number * steps, (number + 1) * steps)
        if takes[ops].any():
            fluid = OpTimes(start_s=simulated.start_s[ops].tolist(), end_s=simulated.end_s[ops].tolist())
            real = OpTimes(start_s=measured.start_s[ops], end_s=measured.end_s[ops])
            yield LineTimes(kind, name, fluid, real)
