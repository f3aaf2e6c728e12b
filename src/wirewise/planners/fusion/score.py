"""Step time of a decision, by replaying as little as necessary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wirewise import work
from wirewise.planners.arrays import Vector
from wirewise.planners.fusion.problem import FusionProblem
from wirewise.sim.data_parallel import BucketTransfer, LayerCost, module_step
from wirewise.sim.modules import Decision, StepSegments, layers, segments, transfers
from wirewise.sim.step_replay import StepReplay, replay
from wirewise.trace.dataflow import KINDS, Dataflow

__all__ = ["Scorer", "step_of"]

_REPLAY_S, _OP_S = 6e-4, 3e-5
"""Work of replaying a step, and its part that grows with its ops."""


@dataclass(frozen=True)
class _Base:
    """A step that was simulated whole; what follows its unchanged beginning can be simulated alone."""

    segments: StepSegments
    computed_s: Vector
    """When each part's backward ops are over and its bucket is handed over, [parts]."""
    reduced_s: Vector
    """When the bucket and all before it are done with, [parts]."""
    first_critical: int
    """First bucket on the critical path."""


def step_of(problem: FusionProblem, decision: Decision, *, simulated: list[int] | None = None) -> Dataflow:
    """Build the graph of a whole step, op by op."""
    return module_step(problem, layers(problem, decision), transfers(problem, decision), simulated=simulated)


class Scorer:
    """Simulator of decisions, which counts its work.

    Equal steps are simulated once. Three shortcuts leave results unchanged: ops between two launches run back to back
    and count as one op; of ranks that differ by a factor, the slowest arrives last at each collective; and the part
    before a change is unchanged, so that a replay can start where no transfer is in flight, or with one that takes
    the only slot.

    Args:
        problem: Modules and links.
        coarsen: Merge all ops between two launches, and replay only from the first change since the last `rebase`.
        one_rank: Simulate the slowest rank only.
    """

    def __init__(self, problem: FusionProblem, *, coarsen: bool = True, one_rank: bool = True) -> None:
        self.problem, self.coarsen = problem, coarsen
        # What a simulated beginning was slowed down by is not known to what follows it.
        self.partial = coarsen and problem.interference == 1.0
        self._simulated = [problem.slowest] if one_rank else None
        self._known: dict[StepSegments, float] = {}
        self._base: _Base | None = None
        self.events = 0
        """Ops that were simulated."""
        self.evaluations = 0
        """Steps or parts of steps that were simulated."""

    def __call__(self, decision: Decision) -> float:
        """Seconds of a step."""
        key = segments(self.problem, decision)
        if key not in self._known:
            self._known[key] = self._from_cut(key) if self.coarsen else self._whole_s(decision)
        return self._known[key]

    def rebase(self, decision: Decision) -> float:
        """Simulate a decision as the base of incremental replays; returns its step time in seconds."""
        key = segments(self.problem, decision)
        flow = self._coarse(key, 0, key.forward_s, 0.0)
        result = self._run(flow)
        self._base = _base(self.problem, key, result)
        return self._known.setdefault(key, result.step_s)

    @property
    def first_critical(self) -> int:
        """First bucket on the critical path of the last `rebase`."""
        return self._base.first_critical if self._base else 0

    def _whole_s(self, decision: Decision) -> float:
        return self._run(step_of(self.problem, decision, simulated=self._simulated)).step_s

    def _from_cut(self, key: StepSegments) -> float:
        cut, base, factor = self._cut(key), self._base, self.problem.factor
        if cut == 0 or base is None:
            return self._run(self._coarse(key, 0, key.forward_s, 0.0)).step_s
        computed, reduced = float(base.computed_s[cut - 1]), float(base.reduced_s[cut - 1])
        busy = 0.0 if reduced <= computed + factor * key.parts[cut].compute_s else reduced
        return self._run(self._coarse(key, cut, computed / factor, busy)).step_s

    def _cut(self, key: StepSegments) -> int:
        """First part that has to be simulated."""
        base, problem = self._base, self.problem
        if not self.partial or base is None or base.segments.forward_s != key.forward_s:
            return 0
        same = 0
        for mine, other in zip(key.parts[:-1], base.segments.parts, strict=False):
            if mine != other:
                break
            same += 1
        alone = problem.comm_slots == 1 and not problem.overhead.has_stages
        for cut in range(same, 0, -1):
            ready = base.computed_s[cut - 1] + problem.factor * key.parts[cut].compute_s
            if alone or base.reduced_s[cut - 1] <= ready:
                return cut
        return 0

    def _coarse(self, key: StepSegments, cut: int, before_s: float, busy_s: float) -> Dataflow:
        parts = key.parts[cut:]
        ops = [LayerCost(f"part {i}", 0.0, p.compute_s, p.size_bytes) for i, p in enumerate(parts)]
        ops.append(LayerCost("rest", before_s, key.tail_s, 0.0))
        sent = [BucketTransfer(i, p.size_bytes, p.chunks) for i, p in enumerate(parts)]
        return module_step(self.problem, ops[::-1], sent, simulated=self._simulated, busy_s=busy_s)

    def _run(self, flow: Dataflow) -> StepReplay:
        self.events += len(flow.names)
        self.evaluations += 1
        work.charge(_REPLAY_S + _OP_S * len(flow.names))
        return replay(flow, self.problem.links, interference=self.problem.interference)


def _base(problem: FusionProblem, key: StepSegments, result: StepReplay) -> _Base:
    flow, end, count = result.dataflow, result.end_s, len(key.parts)
    own = flow.rank == problem.slowest
    computed = end[own & (flow.kind == KINDS.index("backward"))][:count]
    chunks = [part.chunks for part in key.parts]
    launch = problem.overhead.launch_s * problem.factor
    owner = np.repeat(np.arange(count), chunks)
    transfer = np.flatnonzero((flow.size_bytes > 0) & (flow.kind == KINDS.index("communication")))
    reduced = np.zeros(count)
    np.maximum.at(reduced, owner, end[transfer])
    decoded = np.flatnonzero(own & (flow.kind == KINDS.index("decode")))
    if len(decoded):
        np.maximum.at(reduced, owner, end[decoded])
    place = dict(zip(transfer.tolist(), owner.tolist(), strict=True))
    path = [place[op] for op in result.critical_path().ops.tolist() if op in place]
    return _Base(
        key, computed + launch * np.array(chunks), np.maximum.accumulate(reduced), min(path, default=count)
    )
