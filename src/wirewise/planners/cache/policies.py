"""Cache policies: a score for every remote node; higher is better, 0 is worthless."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.sampling import NeighborSampler, seed_batches
from wirewise.graph.structure import InEdges
from wirewise.planners.arrays import Vector
from wirewise.planners.cache.inclusion import Drawers, inclusion, seed_probability

__all__ = ["POLICIES", "CacheProblem", "access_counts", "count_misses", "highest", "select_cached"]

_SAMPLED = 16
"""Batches that tell how much they differ."""


@dataclass(frozen=True, kw_only=True)
class CacheProblem:
    """Sampling of machines: a graph whose nodes, with their features, are partitioned over K of them.

    Raises:
        InputError: Sizes differ, an owner is out of range, or options are invalid.
    """

    edges: InEdges
    """In-neighbours of each node, N nodes."""
    owner: NDArray[np.int64]
    """Machine of each node, [N]."""
    train: tuple[NDArray[np.int64], ...]
    """Training nodes from which each machine samples its seeds, [K]."""
    batch_size: int
    """Seeds of a machine's batch."""
    fanouts: tuple[int, ...]
    semantics: str = "cumulative"
    seed: int = 0
    drawers: Drawers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        nodes, machines = len(self.edges.indptr) - 1, len(self.train)
        if self.owner.shape != (nodes,) or not machines:
            raise InputError(
                f"got owners of shape {list(self.owner.shape)} and {machines} machines; expected [{nodes}], one or more"
            )
        if nodes and not 0 <= self.owner.min() <= self.owner.max() < machines:
            raise InputError(
                f"owners are {self.owner.min()} to {self.owner.max()}; expected 0 to {machines - 1}: training nodes "
                "of every machine, empty ones too"
            )
        if self.batch_size < 1:
            raise InputError(f"batch size is {self.batch_size}; expected at least 1")
        self.sampler()
        object.__setattr__(self, "drawers", Drawers(self.edges))

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return len(self.owner)

    @property
    def machines(self) -> int:
        """Number of machines, K."""
        return len(self.train)

    @cached_property
    def seed_probabilities(self) -> tuple[Vector, ...]:
        """Seed probabilities p_0 of each machine, [K][N]."""
        return tuple(seed_probability(self.num_nodes, train, self.batch_size) for train in self.train)

    @cached_property
    def included(self) -> tuple[Vector, ...]:
        """Vertex-wise inclusion probabilities (VIP) of each machine, [K][N]."""
        return tuple(inclusion(self.drawers, seeds, self.fanouts) for seeds in self.seed_probabilities)

    @cached_property
    def expected(self) -> tuple[Vector, ...]:
        """Expected requests per batch for each node, by `bayesian`, for each machine, [K][N]."""
        return tuple(bayesian(self, machine) for machine in range(self.machines))

    @cached_property
    def sampled(self) -> list[list[NDArray[np.int64]]]:
        """Remote nodes in the first batches of a simulated epoch, [batches][K][rows]."""
        sampler, found = self.sampler(self.seed + 1), list[list[NDArray[np.int64]]]()
        seeds = [seed_batches(train, self.batch_size, seed=sampler.seed) for train in self.train]
        for number in range(min(_SAMPLED, max(map(len, seeds)))):
            rows = []
            for machine, own in enumerate(seeds):
                ids = np.zeros(0, np.int64)
                if number < len(own):
                    # The draws are those of `counts`.
                    ids = sampler.sample(own[number], batch=machine * len(own) + number).n_id
                rows.append(ids[self.owner[ids] != machine])
            found.append(rows)
        return found

    def sampler(self, seed: int | None = None) -> NeighborSampler:
        """Make a sampler of these batches; seeds give different samples."""
        return NeighborSampler(
            self.edges, self.fanouts, semantics=self.semantics, seed=self.seed if seed is None else seed
        )

    def counts(self, machine: int, epochs: Sequence[int], *, seed: int | None = None) -> NDArray[np.int64]:
        """Count the accesses of a machine in simulated epochs, [N]."""
        sampler, total = self.sampler(seed), np.zeros(self.num_nodes, np.int64)
        for epoch in epochs:
            batches = seed_batches(self.train[machine], self.batch_size, epoch=epoch, seed=sampler.seed)
            total += access_counts(sampler, batches, epoch=epoch, first=machine * len(batches))
        return total


def vip(problem: CacheProblem, machine: int) -> Vector:
    """Score by vertex-wise inclusion probability (SALIENT++)."""
    return problem.included[machine]


def degree(problem: CacheProblem, machine: int) -> Vector:
    """Score by degree in the direction of sampling."""
    return problem.drawers.num_samplers.astype(np.float64)


def degree_reachable(problem: CacheProblem, machine: int) -> Vector:
    """Score by degree, for nodes within reach of the hops."""
    seeds = (problem.seed_probabilities[machine] > 0).astype(np.float64)
    reached = inclusion(problem.drawers, seeds, [-1] * len(problem.fanouts))
    return degree(problem, machine) * (reached > 0.5)


def halo(problem: CacheProblem, machine: int) -> Vector:
    """Score neighbours of training nodes first, then other neighbours of own nodes; ties by degree."""
    seeds, own = problem.seed_probabilities[machine] > 0, problem.owner == machine
    near = [inclusion(problem.drawers, who.astype(np.float64), [-1]) > 0.5 for who in (seeds, own)]
    order = degree(problem, machine)
    return np.where(near[0], 2.0, near[1]) + order / (1.0 + order.max(initial=0.0)) * (near[0] | near[1])


def reverse_pagerank(problem: CacheProblem, machine: int) -> Vector:
    """Score by weighted reverse PageRank: r_0 = 1 / T on training nodes, r_{h+1} = r_h + A D^-1 r_h for each hop."""
    rank = seed_probability(problem.num_nodes, problem.train[machine], 1)
    for _ in problem.fanouts:
        rank = rank + problem.drawers.sums(rank / np.maximum(problem.drawers.degree, 1.0))
    return rank


def paths(problem: CacheProblem, machine: int) -> Vector:
    """Score by paths of at most L edges from training nodes: n_{h+1} = n_h + A n_h."""
    count = (problem.seed_probabilities[machine] > 0).astype(np.float64)
    for _ in problem.fanouts:
        count = count + problem.drawers.sums(count)
    return count


def simulated(problem: CacheProblem, machine: int, *, epochs: int = 2) -> Vector:
    """Score by accesses in simulated epochs (GNNLab), whose samples differ from those of training."""
    return problem.counts(machine, range(epochs), seed=problem.seed + 1).astype(np.float64)


def bayesian(problem: CacheProblem, machine: int, *, epochs: int = 2, weight: float = 10.0) -> Vector:
    """Score by VIP corrected with simulated accesses: (accesses + weight) / (batches + weight / VIP).

    Accesses are modelled as Poisson with a Gamma prior of mean VIP and shape `weight`, so that frequent nodes follow
    the simulation and rare ones follow VIP. Nodes with VIP 0 stay at 0 unless accessed.

    Args:
        problem: Sampling of each machine.
        machine: Index of the machine.
        epochs: Epochs to simulate.
        weight: Weight of VIP, in accesses.
    """
    prior = vip(problem, machine)
    seen = simulated(problem, machine, epochs=epochs)
    batches = epochs * max(-(-len(problem.train[machine]) // problem.batch_size), 1)
    mixed = (seen + weight) / (batches + weight / np.maximum(prior, 1e-300))
    return np.where(prior > 0, mixed, seen / batches)


POLICIES: dict[str, Callable[..., Vector]] = {
    "vip": vip,
    "bayesian": bayesian,
    "degree": degree,
    "degree-reachable": degree_reachable,
    "halo": halo,
    "reverse-pagerank": reverse_pagerank,
    "paths": paths,
    "simulated": simulated,
}
"""`(problem, machine, **knobs) -> scores, [N]`."""


def select_cached(scores: Vector, own: NDArray[Any], budget: int) -> NDArray[np.int64]:
    """Select remote nodes of the highest scores above 0, as ascending ids; ties go to the lowest ids.

    Args:
        scores: Score of each node by a policy, [N].
        own: Whether the machine owns a node, [N].
        budget: Maximum number of nodes.
    """
    candidates = np.flatnonzero(~own & (scores > 0))
    return candidates[highest(scores[candidates], budget)]


def highest(values: Vector, count: int) -> NDArray[np.bool_]:
    """Mask of the `count` highest values, or of all; ties go to the first."""
    if len(values) <= count:
        return np.ones(len(values), np.bool_)
    if count <= 0:
        return np.zeros(len(values), np.bool_)
    least = np.partition(values, len(values) - count)[len(values) - count]
    chosen = values > least
    chosen[np.flatnonzero(values == least)[: count - np.count_nonzero(chosen)]] = True
    return chosen


def access_counts(
    sampler: NeighborSampler, batches: Iterable[NDArray[np.int64]], *, epoch: int = 0, first: int = 0
) -> NDArray[np.int64]:
    """Number of batches that need each node other than as a seed, [N].

    Args:
        sampler: Sampler of the neighbourhoods.
        batches: Seeds of each batch; empty batches need no nodes.
        epoch: Epoch of the samples.
        first: Index of the first batch.
    """
    counts = np.zeros(sampler.num_nodes, np.int64)
    for number, seeds in enumerate(batches):
        if len(seeds):
            batch = sampler.sample(seeds, epoch=epoch, batch=first + number)
            counts[batch.n_id[batch.num_seeds :]] += 1
    return counts


def count_misses(counts: NDArray[np.int64], own: NDArray[np.bool_], cached: NDArray[Any]) -> int:
    """Number of rows that a machine fetches over all counted batches.

    Args:
        counts: Number of its batches that need each node, [N].
        own: Whether it owns a node, [N].
        cached: Ids of its cached remote nodes.
    """
    return int(counts[~own].sum() - counts[cached].sum())
