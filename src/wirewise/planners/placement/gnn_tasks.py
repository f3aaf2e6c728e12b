"""Placement of graph stores, samplers, workers and parameter servers for distributed GNN training.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022, with hosts that differ as in the extension to heterogeneous systems (IEEE/ACM ToN 2024). Flows are
ordered online: under `oes` by the degrees of their ends, under `iter`, the default, by their iteration.

Placements are explored with a Markov chain over simulated times. A step moves a task, or swaps two, or does either
with workers that take their samplers along, and is accepted with probability min(1, exp(-beta (T' - T) / T_start)).
All placements are simulated with the same record of iterations, so that their times differ by the placement only;
times are cached, with identical hosts treated as interchangeable. Infeasible moves are resampled, which biases the
chain a little towards crowded placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wirewise.errors import InputError, PlanError
from wirewise.planners.arrays import Ints
from wirewise.planners.placement.problem import PlacementProblem
from wirewise.planners.placement.starts import STARTS, first_fit
from wirewise.plans.placement import FlowPolicy, PlacedTask, PlacementPlan

__all__ = ["METHODS", "PlacementSearch", "place", "search"]

_DRAWS = 50
"""Moves that are drawn for a step before it stays where it is."""

METHODS = ("gnn-tasks", *STARTS)
"""The search, and the rules that it is compared with."""


def place(
    method: str,
    problem: PlacementProblem,
    *,
    policy: FlowPolicy = "iter",
    steps: int = 1000,
    beta: float = 200.0,
    seed: int = 0,
) -> PlacementPlan:
    """Place all tasks on hosts.

    Args:
        method: One of `METHODS`; the search starts from the faster of colocated and store-affine tasks, if they fit.
        problem: Tasks and hosts.
        policy: How flows share interfaces, in simulation and execution.
        steps: Steps of the search.
        beta: Beta of the search (`search`).
        seed: Seed of random choices.

    Raises:
        PlanError: The tasks do not fit; the message names the resource that is short.
        InputError: Steps or beta are negative, or the simulator does not know the policy.
    """
    simulator = problem.simulator
    rules = ("colocated", "store-affine")
    ruled = {rule: places for rule in rules if (places := _ruled(problem, rule, seed)) is not None}
    if method == "gnn-tasks":
        starts = list(ruled.values()) or [first_fit(problem, seed=seed)]
        start = min(starts, key=lambda places: simulator.seconds(places, policy))
        places = search(problem, start, policy=policy, steps=steps, beta=beta, seed=seed).places
    else:
        places = STARTS[method](problem, seed=seed)
    together = ruled.get("colocated")
    return PlacementPlan(
        world_size=len(problem.hosts),
        planner=method,
        seed=seed,
        tasks=tuple(
            PlacedTask(name=task.name, kind=task.kind, host=int(host), demand=task.demand)
            for task, host in zip(problem.tasks.tasks, places, strict=True)
        ),
        hosts=problem.hosts,
        policy=policy,
        iterations=problem.tasks.iterations,
        prefetch=problem.tasks.prefetch,
        predicted_s=simulator.seconds(places, policy),
        colocated_s=0.0 if together is None else simulator.seconds(together, policy),
        lower_bound_s=simulator.bounds(places).seconds,
        competitive_ratio=simulator.competitive_ratio(places),
    )


def _ruled(problem: PlacementProblem, rule: str, seed: int) -> Ints | None:
    """The rule's placement, if it fits."""
    try:
        return STARTS[rule](problem, seed=seed)
    except PlanError:
        return None


class PlacementSearch(NamedTuple):
    """Result of a Markov chain."""

    places: Ints
    """Host of each task in the best placement seen, [T]."""
    seconds: float
    """Seconds of the best placement."""
    start_s: float
    simulated: int
    """Number of distinct placements that were simulated."""


def search(
    problem: PlacementProblem,
    start: Ints,
    *,
    policy: FlowPolicy = "iter",
    steps: int = 1000,
    beta: float = 200.0,
    seed: int = 0,
) -> PlacementSearch:
    """Explore placements from a start; the best one seen is never slower than the start.

    Args:
        problem: Tasks and hosts.
        start: Feasible initial placement.
        policy: Policy of the flows.
        steps: Steps of the chain.
        beta: Inverse temperature: a step slower by 1 % of the start's time is accepted with probability exp(-beta /
            100).
        seed: Seed of the chain.

    Raises:
        InputError: Steps or beta are negative, or the start does not fit.
    """
    if steps < 0 or not 0 <= beta < np.inf or not problem.fits(start):
        raise InputError(
            f"got {steps} steps, beta {beta} and a start that {'fits' if problem.fits(start) else 'does not fit'}; "
            "expected 0 or more of each and a start that fits"
        )
    random, times = np.random.default_rng(seed), _Times(problem, policy)
    moves = _Moves(problem, random)
    places, now = start, times.of(start)
    best, best_s, start_s = places, now, now
    for _ in range(steps if len(problem.free) else 0):
        candidate = moves.draw(places)
        then = times.of(candidate)
        if then <= now or random.random() < np.exp(-beta * (then - now) / start_s):
            places, now = candidate, then
        if now < best_s:
            best, best_s = places, now
    return PlacementSearch(best, best_s, start_s, len(times.known))


class _Times:
    """Simulated times, each placement once."""

    def __init__(self, problem: PlacementProblem, policy: FlowPolicy) -> None:
        self.problem, self.policy = problem, policy
        self.known: dict[bytes, float] = {}
        self._alike = _alike(problem)

    def of(self, places: Ints) -> float:
        key = self._canonical(places).tobytes()
        if key not in self.known:
            self.known[key] = self.problem.simulator.seconds(places, self.policy)
        return self.known[key]

    def _canonical(self, places: Ints) -> Ints:
        """Placement with hosts that are alike in the order in which tasks use them."""
        if not self._alike:
            return places
        names = np.arange(len(self.problem.hosts))
        used, first = np.unique(places, return_index=True)
        order = used[np.argsort(first)]
        for hosts in self._alike:
            seen = [host for host in order if host in hosts]
            rest = [host for host in hosts if host not in seen]
            names[[*seen, *rest]] = hosts
        canonical: Ints = names[places]
        return canonical


def _alike(problem: PlacementProblem) -> list[list[int]]:
    """Hosts of equal interfaces and room that no fixed task tells apart, two or more each."""
    links, told = problem.links, set(problem.fixed[problem.fixed >= 0].tolist())
    classes: dict[tuple[float, ...], list[int]] = {}
    for host in range(links.hosts):
        if host not in told:
            rates = (links.bandwidth_out_bytes_per_s[host], links.bandwidth_in_bytes_per_s[host])
            classes.setdefault((*rates, *problem.capacity[host]), []).append(host)
    return [hosts for hosts in classes.values() if len(hosts) > 1]


@dataclass(frozen=True)
class _Moves:
    """Neighbours of a placement."""

    problem: PlacementProblem
    random: np.random.Generator

    def draw(self, places: Ints) -> Ints:
        """Another placement that fits, or the same one where none was found."""
        units = [np.array([task]) for task in self.problem.free]
        groups = [members for members in self.problem.groups if len(members) > 1]
        for _ in range(_DRAWS):
            among = groups if groups and self.random.random() < 0.5 else units
            candidate = self._move(places, among) if self.random.random() < 0.5 else self._swap(places, among)
            if (candidate != places).any() and self.problem.fits(candidate):
                return candidate
        return places

    def _move(self, places: Ints, among: list[Ints]) -> Ints:
        members = among[self.random.integers(len(among))]
        candidate = places.copy()
        candidate[members] = self.random.integers(len(self.problem.hosts))
        return candidate

    def _swap(self, places: Ints, among: list[Ints]) -> Ints:
        """Two take each other's host; samplers follow their worker there."""
        first, second = (among[self.random.integers(len(among))] for _ in range(2))
        candidate = places.copy()
        candidate[first], candidate[second] = places[second[-1]], places[first[-1]]
        return candidate
