"""Placements by rule: baselines, and starting points of the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, repeat

import numpy as np

from wirewise.errors import PlanError
from wirewise.planners.arrays import Ints
from wirewise.planners.placement.problem import Matrix, PlacementProblem, numbers_of

__all__ = ["STARTS", "colocated", "first_fit", "random_placement", "store_affine"]

_TRIES = 200
"""Orders in which packing is tried before it is given up."""


def first_fit(problem: PlacementProblem, *, seed: int = 0) -> Ints:
    """Place the largest tasks first, each on the host with the most capacity left; random orders if that fails.

    Raises:
        PlanError: No order fits; the message names the resource that is short.
    """
    random = np.random.default_rng(seed)
    total = np.maximum(problem.capacity.sum(axis=0), 1e-300)
    weight = (problem.demand / total).max(axis=1, initial=0.0)
    order = problem.free[np.argsort(-weight[problem.free], kind="stable")]

    def orders() -> Iterator[Ints]:
        shuffled = order
        while True:
            yield shuffled
            shuffled = random.permutation(shuffled)

    def roomiest(hosts: Ints, left: Matrix) -> int:
        return int(hosts[np.argmax((left / total).min(axis=1, initial=np.inf)[hosts])])

    return _packed(problem, orders(), roomiest)


def colocated(problem: PlacementProblem, *, seed: int = 0) -> Ints:
    """Place samplers with their worker, workers evenly over hosts, servers round-robin (DistDGL).

    Raises:
        PlanError: No host has capacity for some worker with its samplers.
    """
    places = problem.fixed.copy()
    workers = np.zeros(len(problem.hosts), np.int64)
    for members in problem.groups:
        left = problem.left(places)
        hosts = problem.hosts_for(members, left)
        if not len(hosts):
            raise PlanError(f"workers with their samplers do not fit: {problem.shortage(members, left)}")
        chosen = hosts[np.argmin(workers[hosts])]
        places[members] = chosen
        workers[chosen] += 1
    _deal(problem, places, numbers_of(problem, "server"))
    return places


def random_placement(problem: PlacementProblem, *, seed: int = 0) -> Ints:
    """Place every task on a random host with capacity.

    Raises:
        PlanError: No random order fits.
    """
    random = np.random.default_rng(seed)
    orders = (random.permutation(problem.free) for _ in repeat(None))
    return _packed(problem, orders, lambda hosts, left: int(random.choice(hosts)))


def store_affine(problem: PlacementProblem, *, seed: int = 0) -> Ints:
    """Place each sampler, largest traffic first, with the stores that send it most; its worker follows.

    Raises:
        PlanError: Raised by `first_fit`, for the remaining tasks.
    """
    places = problem.fixed.copy()
    received = _received(problem, places)
    samplers = sorted(numbers_of(problem, "sampler"), key=lambda task: -received[task].max(initial=0.0))
    _by_bytes(problem, places, samplers, received)
    _by_bytes(problem, places, numbers_of(problem, "worker"), _received(problem, places))
    _deal(problem, places, numbers_of(problem, "server"))
    return places


def _by_bytes(problem: PlacementProblem, places: Ints, tasks: list[int], received: Matrix) -> None:
    for task in tasks:
        hosts = _hosts_for(problem, places, task)
        places[task] = hosts[np.argmax(received[task, hosts])]


def _hosts_for(problem: PlacementProblem, places: Ints, task: int) -> Ints:
    left, alone = problem.left(places), np.array([task])
    hosts = problem.hosts_for(alone, left)
    if not len(hosts):
        raise PlanError(problem.shortage(alone, left))
    return hosts


def _received(problem: PlacementProblem, places: Ints) -> Matrix:
    """Bytes that each task gets from those that are placed on each host, [T, H]."""
    found = np.zeros((len(places), len(problem.hosts)))
    number = {task.name: place for place, task in enumerate(problem.tasks.tasks)}
    for flow in problem.tasks.flows:
        source, target = number[flow.source], number[flow.target]
        if places[source] >= 0:
            found[target, places[source]] += sum(problem.tasks.numbers(flow.size_bytes))
    return found


def _deal(problem: PlacementProblem, places: Ints, tasks: list[int]) -> None:
    """One task after the other on the next host in turn that has room."""
    following = 0
    for task in tasks:
        hosts = _hosts_for(problem, places, task)
        chosen = int(hosts[np.argmin((hosts - following) % len(problem.hosts))])
        places[task] = chosen
        following = chosen + 1


def _packed(problem: PlacementProblem, orders: Iterator[Ints], choose: Callable[[Ints, Matrix], int]) -> Ints:
    """Places of the first order of tasks in which each finds a host."""
    for order in islice(orders, _TRIES):
        places = problem.fixed.copy()
        left = problem.left(places)
        for task in order:
            hosts = problem.hosts_for(np.array([task]), left)
            if not len(hosts):
                break
            places[task] = choose(hosts, left)
            left[places[task]] -= problem.demand[task]
        else:
            return places
    raise PlanError(problem.shortage(np.array([task]), left))


STARTS: dict[str, Callable[..., Ints]] = {
    "colocated": colocated,
    "store-affine": store_affine,
    "random": random_placement,
}
"""Rules by name: `(problem, *, seed) -> places, [T]`."""
