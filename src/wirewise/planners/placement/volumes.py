"""Flow sizes from inclusion probabilities: a job is placed before anything of it has run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.planners.cache.inclusion import Vector, inclusion, seed_probability
from wirewise.planners.cache.policies import CacheProblem
from wirewise.plans.cache import CachePlan
from wirewise.sim.flows import Flow, Task, TaskSet

__all__ = ["expected_rows", "from_graph"]


def expected_rows(
    problem: CacheProblem, train: NDArray[np.int64], batch_size: int, *, kept: NDArray[np.int64] | None = None
) -> Vector:
    """Rows that a sampled batch needs of each store on average, seeds included, [machines].

    Args:
        problem: Graph, partition and fanouts.
        train: Nodes from which the seeds are drawn evenly.
        batch_size: Seeds.
        kept: Nodes whose rows the sampler has itself.
    """
    seeds = seed_probability(problem.num_nodes, train, batch_size)
    needed = inclusion(
        problem.drawers, seeds, problem.fanouts, hop_zero=True, frontier=problem.semantics == "frontier"
    )
    if kept is not None:
        needed[kept] = 0.0
    return np.bincount(problem.owner, weights=needed, minlength=problem.machines).astype(np.float64)


def from_graph(
    problem: CacheProblem,
    hosts: Sequence[str],
    *,
    row_bytes: float,
    model_bytes: float,
    workers_per_host: int = 1,
    samplers: int = 1,
    servers: int = 1,
    iterations: int = 8,
    prefetch: int = 2,
    sampler_s: float = 0.0,
    worker_s: float = 0.0,
    room: float | None = None,
    cached: CachePlan | None = None,
) -> TaskSet:
    """Tasks that train on a partitioned graph; part k lies on host k, whose workers draw seeds from its nodes.

    The structure is on every host, as in SALIENT++, so stores send rows only. Samplers divide a worker's batch, send
    all of its rows to the worker, and take a processor each; workers take a GPU each, servers a processor.

    Args:
        problem: Graph, partition, training nodes of each part, seeds of a worker's batch, fanouts.
        hosts: Names, one for each part.
        row_bytes: Of a node's features, with its id.
        model_bytes: Of all gradients of a worker, and of all parameters.
        workers_per_host: They share the part's training nodes.
        samplers: Of each worker.
        servers: That share the parameters.
        iterations: Of the record.
        prefetch: Iterations that samplers run ahead.
        sampler_s: Seconds of a sampler's execution.
        worker_s: Of a worker's.
        room: Workers, with their samplers, that a host has room for; none: one more than it starts with.
        cached: Rows that the samplers of each part's workers keep, wherever they are placed.

    Raises:
        InputError: Counts below 1, or as many names as there are no parts.
        PlanError: The cache plan was made for another partition.
    """
    if min(workers_per_host, samplers, servers) < 1 or len(hosts) != problem.machines:
        raise InputError(
            f"got {workers_per_host} workers a host, {samplers} samplers, {servers} servers and {len(hosts)} hosts; "
            f"expected at least 1 of each, and a host for each of {problem.machines} parts"
        )
    if cached is not None:
        cached.check_partition(problem.owner)
    tasks = [Task(name=f"store{k}", kind="store", host=host) for k, host in enumerate(hosts)]
    flows: list[Flow] = []
    tasks += [Task(name=f"server{p}", kind="server", demand={"cpu": 1.0}) for p in range(servers)]
    size = -(-problem.batch_size // samplers)
    # In this order dealing workers out over the hosts brings each to the part that its seeds are from.
    for i in range(workers_per_host):
        for k in range(problem.machines):
            train = problem.train[k][i::workers_per_host]
            rows = expected_rows(problem, train, size)
            whole = rows.sum() * row_bytes
            if cached is not None:
                rows = expected_rows(problem, train, size, kept=cached.machines[k].ids)
            worker = f"worker{k}.{i}"
            tasks.append(Task(name=worker, kind="worker", demand={"gpu": 1.0}, execution_s=worker_s))
            for s in range(samplers):
                name = f"sampler{k}.{i}.{s}"
                tasks.append(
                    Task(name=name, kind="sampler", worker=worker, demand={"cpu": 1.0}, execution_s=sampler_s)
                )
                flows += [
                    Flow(source=f"store{part}", target=name, size_bytes=float(count * row_bytes))
                    for part, count in enumerate(rows)
                ]
                flows.append(Flow(source=name, target=worker, size_bytes=float(whole)))
            flows += _gradients(worker, servers, model_bytes)
    places = workers_per_host + 1.0 if room is None else room
    have = {"gpu": places, "cpu": places * samplers + servers}
    return TaskSet(
        iterations=iterations,
        tasks=tuple(tasks),
        flows=tuple(flows),
        prefetch=prefetch,
        hosts={host: dict(have) for host in hosts},
    )


def _gradients(worker: str, servers: int, model_bytes: float) -> Iterator[Flow]:
    for server in range(servers):
        part = model_bytes / servers
        yield Flow(source=worker, target=f"server{server}", size_bytes=part)
        yield Flow(source=f"server{server}", target=worker, size_bytes=part)
