"""Monte Carlo tree search over strategies, and descent from its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.planners.placement.tag.problem import Action, DeploymentProblem, Strategy

__all__ = ["Policy", "StrategyTimes", "TreeSearchResult", "descend", "fill_undecided", "tree_search", "value"]

Vector = NDArray[np.float64]

Policy = Callable[[DeploymentProblem, Strategy, int], Vector]
"""Probabilities of the actions of the op group at a place in the order, `(problem, strategy, place)`; groups at earlier
places are decided."""


class StrategyTimes:
    """Cache of simulated step times by strategy.

    Args:
        problem: Problem of the strategies.
        maximum: Maximum number of simulations; exceeding it raises `StrategyTimes.BudgetExhausted`.
    """

    class BudgetExhausted(Exception):
        """Simulation budget exhausted."""

    def __init__(self, problem: DeploymentProblem, maximum: float = inf) -> None:
        self.problem, self.most = problem, maximum
        self.known: dict[Strategy, float] = {}

    def of(self, strategy: Strategy) -> float:
        """Step time in seconds; infinite if the strategy does not fit."""
        found = self.known.get(strategy)
        if found is None:
            if len(self.known) >= self.most:
                raise StrategyTimes.BudgetExhausted
            found = self.known[strategy] = self.problem.seconds_of(strategy)
        return found

    @property
    def best(self) -> Strategy:
        """The fastest strategy so far."""
        return min(self.known, key=lambda one: self.known[one])


class TreeSearchResult(NamedTuple):
    """Result of a tree search."""

    strategy: Strategy
    seconds: float
    trail: list[float]
    """Best time so far after each playout, in seconds."""


class _Node:
    __slots__ = ("children", "done", "gains", "prior", "visits")

    def __init__(self, prior: Vector) -> None:
        self.prior = prior
        self.visits = np.zeros(len(prior))
        self.gains = np.zeros(len(prior))
        self.done = np.zeros(len(prior), bool)
        self.children: dict[int, _Node] = {}


def fill_undecided(problem: DeploymentProblem, prefix: Strategy) -> Strategy:
    """Complete a strategy by letting undecided op groups follow the first one.

    Args:
        problem: Op groups and their possible actions.
        prefix: Actions of the first op groups of the order.
    """
    if not prefix:
        return problem.baseline()
    order, actions = problem.order, problem.actions
    first = actions[order[0]][prefix[0]]
    chosen = [_like(actions[g], first) for g in range(len(actions))]
    for g, action in zip(order, prefix, strict=False):
        chosen[g] = action
    return tuple(chosen)


def _like(actions: list[Action], wanted: Action) -> int:
    plainer = (
        wanted,
        wanted._replace(communication="allreduce"),
        wanted._replace(communication="allreduce", proportional=False),
    )
    for one in plainer:
        if one in actions:
            return actions.index(one)
    return next((i for i, one in enumerate(actions) if one.groups == wanted.groups), len(actions) - 1)


def value(seconds: float, baseline_s: float) -> float:
    """Value of a leaf: the gain over the baseline, compressed for large gains; -1 if memory is exceeded."""
    if seconds == inf:
        return -1.0
    gain = baseline_s / seconds - 1.0
    return float(gain**0.25 if gain > 1.0 else gain)


def tree_search(
    times: StrategyTimes, *, playouts: int, policy: Policy | None = None, seed: int = 0, until_s: float = 0.0
) -> TreeSearchResult:
    """Decide op groups in order, the longest first, with a simulation at the end of each playout.

    A playout follows `Q + c p sqrt(N) / (1 + n)` with `c = sqrt(actions / 10)` (PUCT, as in TAG, TPDS 2023) until it
    reaches a new node, whose undecided groups follow the first one. An untried action starts with its node's mean
    value: starting at 0, the value of the baseline, actions that the policy thinks unlikely would never be tried once
    a good one is known. Exhausted subtrees are skipped.

    Args:
        times: Simulated seconds of strategies.
        playouts: Maximum number of playouts.
        policy: Prior probabilities of actions. Defaults to uniform.
        seed: Seed of tie-breaking.
        until_s: Time at which to stop, in seconds.
    """
    problem, random = times.problem, np.random.default_rng(seed)
    order, actions = problem.order, problem.actions
    baseline_s = times.of(problem.baseline())
    if baseline_s == inf:
        baseline_s = problem.step(problem.baseline()).step_s
    # Equals are tried in a random order.
    jitter = [1e-6 * random.random(len(one)) for one in actions]

    def node(decided: Strategy) -> _Node:
        group = order[len(decided)]
        if policy is None:
            return _Node(np.full(len(actions[group]), 1.0 / len(actions[group])))
        return _Node(policy(problem, fill_undecided(problem, decided), len(decided)))

    root = node(())
    best, best_s, trail = problem.baseline(), times.of(problem.baseline()), list[float]()
    for _ in range(playouts):
        if root.done.all() or best_s <= until_s:
            break
        path, at = list[tuple[_Node, int]](), root
        decided: Strategy = ()
        while True:
            count = len(at.prior)
            bonus = np.sqrt(count / 10 * (1 + at.visits.sum())) * at.prior / (1 + at.visits)
            mean = np.where(
                at.visits > 0, at.gains / np.maximum(at.visits, 1), at.gains.sum() / max(at.visits.sum(), 1)
            )
            scores = np.where(at.done, -inf, mean + bonus + jitter[order[len(decided)]])
            chosen = int(np.argmax(scores))
            path.append((at, chosen))
            decided = (*decided, chosen)
            if len(decided) == len(order):
                at.done[chosen] = True
                break
            if chosen not in at.children:
                at.children[chosen] = node(decided)
                break
            at = at.children[chosen]
        strategy = fill_undecided(problem, decided)
        try:
            seconds = times.of(strategy)
        except StrategyTimes.BudgetExhausted:
            break
        if seconds < best_s:
            best, best_s = strategy, seconds
        trail.append(best_s)
        gain = value(seconds, baseline_s)
        for place, (one, action) in enumerate(reversed(path)):
            one.visits[action] += 1
            one.gains[action] += gain
            if place and one.children[action].done.all():
                one.done[action] = True
    return TreeSearchResult(best, best_s, trail)


def descend(
    times: StrategyTimes, start: Strategy, *, seed: int = 0, allowed: Callable[[int, int], bool] | None = None
) -> Strategy:
    """Improve a strategy by changing runs of adjacent op groups while steps get shorter; returns the fastest seen.

    Args:
        times: Cache of simulated times, whose budget ends the descent.
        start: Strategy to begin with.
        seed: Seed of the order of changes.
        allowed: Whether an op group may take an action, by their indices. Defaults to always.
    """
    problem, random = times.problem, np.random.default_rng(seed)
    best, best_s = start, times.of(start)
    try:
        better = True
        while better:
            better = False
            for changed in _changes(problem, best, random):
                tried = changed(best)
                if allowed is not None and not all(map(allowed, range(len(tried)), tried)):
                    continue
                if (seconds := times.of(tried)) < best_s * (1 - 1e-9):
                    best, best_s, better = tried, seconds, True
    except StrategyTimes.BudgetExhausted:
        pass
    return best


def _changes(
    problem: DeploymentProblem, strategy: Strategy, random: np.random.Generator
) -> Iterator[Callable[[Strategy], Strategy]]:
    """Runs of 1, 2, 4, ... neighbouring op groups, each with every action, in a random order."""
    count = len(strategy)
    wanted = list(dict.fromkeys(action for of_group in problem.actions for action in of_group))
    lengths = [2**k for k in range(count.bit_length()) if 2**k < count] + [count]
    moves = [
        (start, length, action)
        for length in lengths
        for start in range(0, count - length + 1, max(length // 2, 1))
        for action in wanted
    ]
    for place in random.permutation(len(moves)):
        start, length, action = moves[place]

        def changed(
            of: Strategy, start: int = start, stop: int = start + length, action: Action = action
        ) -> Strategy:
            return tuple(
                _like(problem.actions[g], action) if start <= g < stop else own for g, own in enumerate(of)
            )

        yield changed
