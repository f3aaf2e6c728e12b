"""Backtracking search (DisCo, Algorithm 1; TPDS 2022).

A queue holds states by their simulated step. The best is popped, each method changes it at 0 to beta random places,
and the results are queued if they take at most alpha times the best step so far. The search ends with the queue, or
when `stop` changed states in a row were no better.

Beyond the paper: the queue starts with all baselines, the results of compilers and frameworks without a search, so
that the result is never worse than one of them. A state seen before is not queued again, but a popped one is
re-queued as if it took 0.02 % longer, because its changes are random. States that alpha no longer admits are dropped
when popped. Hence a larger alpha continues where a smaller one ends, with the same random numbers, and is never
worse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.fusion.disco.edges import fuse_greedily
from wirewise.planners.fusion.disco.model import State, StepModel, Times
from wirewise.planners.fusion.disco.moves import METHODS
from wirewise.plans.fusion import ddp_buckets

__all__ = ["BUCKETS", "FUSIONS", "Knobs", "SearchResult", "baselines", "search"]

FUSIONS = ("none", "default", "maximal")
"""Initial fusions: none; producers into their only reader, as in XLA; and all legal ones."""

BUCKETS: dict[str, float | None] = {"none": 0.0, "default": None, "1MiB": 2.0**20}
"""Bucket caps in bytes; 0 for one gradient per bucket. None for those of DistributedDataParallel."""

_AGAIN = 1.0002
"""Factor of a state's place in the queue each time that it was taken."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Options of the search, with the paper's values.

    Raises:
        PlanError: An option is out of range.
    """

    alpha: float = 1.05
    """States whose step is up to `alpha` times the best one are explored further."""
    beta: int = 10
    """Maximum number of changes by one method."""
    stop: int = 1000
    """Number of successive changed states without improvement after which to stop."""
    evaluations: int = 100_000
    """Maximum number of simulated states."""
    methods: tuple[str, ...] = tuple(METHODS)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.alpha >= 1 or min(self.beta, self.stop, self.evaluations) < 1:
            raise PlanError(
                f"alpha is {self.alpha}, beta {self.beta}, stop {self.stop}, evaluations {self.evaluations}; expected "
                "at least 1 of each"
            )
        if not self.methods or set(self.methods) - set(METHODS):
            raise PlanError(f"methods are {self.methods}; expected some of {', '.join(METHODS)}")


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Best state, and statistics of the search."""

    state: State
    times: Times
    baselines: dict[tuple[str, str], Times]
    """Times of baselines by fusion and rule of buckets."""
    evaluations: int
    since_best: int
    """Number of changed states since the best one."""
    seconds: float

    @property
    def baseline_s(self) -> float:
        """Step time of the best baseline, in seconds."""
        return min(one.step_s for one in self.baselines.values())


def search(model: StepModel, knobs: Knobs | None = None) -> SearchResult:
    """Search for the best state, starting from the baselines."""
    knobs, begin, before = knobs or Knobs(), time.monotonic(), model.evaluations
    queue, random = _Queue(knobs.alpha), np.random.default_rng(knobs.seed)
    known = baselines(model)
    times = {name: model.times(state) for name, state in known.items()}
    for name, state in known.items():
        queue.new(state)
        queue.offer(state, times[name])
    since = 0
    while since < knobs.stop and model.evaluations - before < knobs.evaluations:
        popped = queue.take()
        if popped is None:
            break
        for method in knobs.methods:
            since += 1
            other = METHODS[method](model, popped, int(random.integers(knobs.beta + 1)), random)
            if queue.new(other) and queue.offer(other, model.times(other)):
                since = 0
            if since >= knobs.stop:
                break
    return SearchResult(
        state=queue.best,
        times=queue.best_times,
        baselines=times,
        evaluations=model.evaluations - before,
        since_best=since,
        seconds=time.monotonic() - begin,
    )


class _Queue:
    """States by their step, and the best of all."""

    def __init__(self, alpha: float) -> None:
        self._alpha, self._seen, self._states = alpha, set[bytes](), list[tuple[float, int, State]]()
        self._offered = 0
        self.best: State
        self.best_times = Times(np.inf, np.inf, np.inf)

    def new(self, state: State) -> bool:
        """Whether the state was never seen; from now on it was."""
        before = len(self._seen)
        self._seen.add(state.key)
        return len(self._seen) > before

    def offer(self, state: State, times: Times) -> bool:
        """Queue the state unless it takes too long; whether it is better than all before."""
        better = times.step_s < self.best_times.step_s
        if better:
            self.best, self.best_times = state, times
        if times.step_s <= self._alpha * self.best_times.step_s:
            self._offered += 1
            heappush(self._states, (times.step_s, self._offered, state))
        return better

    def take(self) -> State | None:
        """The best that is queued; None if nothing is left that alpha admits."""
        if not self._states or self._states[0][0] > self._alpha * self.best_times.step_s:
            return None
        step_s, number, state = heappop(self._states)
        heappush(self._states, (_AGAIN * step_s, number, state))
        return state


def baselines(model: StepModel) -> dict[tuple[str, str], State]:
    """Each fusion combined with each rule of buckets, by the names of both."""
    alone = model.alone()
    fused = {
        "none": alone,
        "default": greedy(model, alone, shared=False),
        "maximal": greedy(model, alone, shared=True),
    }
    return {
        (name, rule): capped(model, fused[name], cap) for name in FUSIONS for rule, cap in BUCKETS.items()
    }


def greedy(model: StepModel, state: State, *, shared: bool) -> State:
    """Fuse producers into their readers wherever legal, from the last operator to the first.

    Args:
        model: Model of the step.
        state: State without copies.
        shared: Whether to also fuse producers whose result has other readers.
    """
    return model.fused(state, fuse_greedily(model.arrays, state.fusion, shared))


def capped(model: StepModel, state: State, cap_bytes: float | None) -> State:
    """Bucket gradients in ready order, each bucket closed as soon as it reaches its cap."""
    if cap_bytes == 0.0:
        return model.with_buckets(state, ([i] for i in range(len(state.bucket))))
    order = [one for group in model.buckets(state) for one in group]
    sizes = model.arrays.size_bytes[order].tolist()
    return model.with_buckets(state, ([order[i] for i in group] for group in ddp_buckets(sizes, cap_bytes)))
