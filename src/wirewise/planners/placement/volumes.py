"""Flow sizes from the graph, so that a job can be placed before it has run.

Inclusion probabilities give expected sizes; sampling the coming batches, whose random numbers are keyed by their
index, gives the actual ones. The former count nodes twice that are reachable on several paths, so that flows of nearby
nodes are overestimated on graphs of low degree or many triangles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.graph.sampling import seed_batches
from wirewise.planners.arrays import Vector
from wirewise.planners.cache.inclusion import inclusion, seed_probability
from wirewise.planners.cache.policies import CacheProblem
from wirewise.plans.cache import CachePlan
from wirewise.trace.tasks import Flow, TaskSet, TrainingTask

__all__ = ["VOLUMES", "expected_rows", "from_graph", "sampled_rows"]

VOLUMES = ("drawn", "expected")
"""Methods to determine flow sizes."""


def expected_rows(
    problem: CacheProblem,
    train: NDArray[np.int64],
    batch_size: int,
    *,
    cached: NDArray[np.int64] | None = None,
) -> Vector:
    """Expected rows that a sampled batch needs from each store, seeds included, [machines].

    Args:
        problem: Graph, partition and fanouts.
        train: Nodes from which the seeds are sampled uniformly.
        batch_size: Seeds of a batch.
        cached: Nodes whose rows the sampler holds itself.
    """
    seeds = seed_probability(problem.num_nodes, train, batch_size)
    needed = inclusion(
        problem.drawers, seeds, problem.fanouts, hop_zero=True, frontier=problem.semantics == "frontier"
    )
    if cached is not None:
        needed[cached] = 0.0
    return np.bincount(problem.owner, weights=needed, minlength=problem.machines).astype(np.float64)


def sampled_rows(
    problem: CacheProblem,
    train: NDArray[np.int64],
    batch_size: int,
    iterations: int,
    *,
    stream: int = 0,
    cached: NDArray[np.int64] | None = None,
) -> Vector:
    """Rows that the coming batches of a sampler need from each store, seeds included, [iterations, machines].

    Args:
        problem: Graph, partition and fanouts; its seed keys the sampling.
        train: Nodes from which the seeds come, epoch by epoch.
        batch_size: Seeds of a batch.
        iterations: Number of batches.
        stream: Index of the sampler, for independent samples.
        cached: Nodes whose rows the sampler holds itself.
    """
    sampler, rows = problem.sampler(), np.zeros((iterations, problem.machines))
    # Nearly equal ones: a short batch at the end of each epoch would make the record of a few iterations too small.
    count = max(round(len(train) / batch_size), 1)
    for number in range(iterations if len(train) else 0):
        epoch, place = divmod(number, count)
        if place == 0:
            batches = seed_batches(train, batch_size, epoch=epoch, seed=problem.seed, batches=count)
        needed = sampler.sample(batches[place], epoch=epoch, batch=stream * count + place).n_id
        if cached is not None:
            needed = needed[~np.isin(needed, cached)]
        rows[number] = np.bincount(problem.owner[needed], minlength=problem.machines)
    return rows


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
    volumes: str = "drawn",
) -> TaskSet:
    """Tasks of training on a partitioned graph; part k is on host k, whose workers sample seeds from its nodes.

    The structure is on every host, as in SALIENT++, so stores send rows only. Samplers divide a worker's batch, send
    all of its rows to the worker, and use one CPU each; workers use one GPU each, servers one CPU.

    Args:
        problem: Graph, partition, training nodes of each part, seeds of a worker's batch, fanouts.
        hosts: Host names, one per part.
        row_bytes: Bytes of a node's features, with its id.
        model_bytes: Size of a worker's gradients, and of all parameters, in bytes.
        workers_per_host: Workers on each host, which share the part's training nodes.
        samplers: Number of samplers per worker.
        servers: Number of servers that shard the parameters.
        iterations: Number of iterations in the record.
        prefetch: Number of iterations that samplers run ahead.
        sampler_s: Execution time of a sampler, in seconds.
        worker_s: Execution time of a worker, in seconds.
        room: Workers, with their samplers, that fit on a host. Defaults to one more than it starts with.
        cached: Rows cached by the samplers of each part's workers, wherever they are placed.
        volumes: "drawn": sizes of the first iterations' batches; "expected": the same for all iterations.

    Raises:
        InputError: A count is below 1, the number of names is not that of parts, or the volumes are unknown.
        PlanError: The cache plan was made for another partition.
    """
    if min(workers_per_host, samplers, servers) < 1 or len(hosts) != problem.machines:
        raise InputError(
            f"got {workers_per_host} workers a host, {samplers} samplers, {servers} servers and {len(hosts)} hosts; "
            f"expected at least 1 of each, and a host for each of {problem.machines} parts"
        )
    if volumes not in VOLUMES:
        raise InputError(f"unknown volumes {volumes!r}; expected one of: {', '.join(VOLUMES)}")
    if cached is not None:
        cached.check_partition(problem.owner)
    tasks = [TrainingTask(name=f"store{k}", kind="store", host=host) for k, host in enumerate(hosts)]
    flows: list[Flow] = []
    tasks += [TrainingTask(name=f"server{p}", kind="server", demand={"cpu": 1.0}) for p in range(servers)]
    size, drawn = -(-problem.batch_size // samplers), iterations if volumes == "drawn" else 0
    # In this order dealing workers out over the hosts brings each to the part that its seeds are from.
    for i in range(workers_per_host):
        for k in range(problem.machines):
            train, worker = problem.train[k][i::workers_per_host], f"worker{k}.{i}"
            tasks.append(TrainingTask(name=worker, kind="worker", demand={"gpu": 1.0}, execution_s=worker_s))
            for part in range(samplers):
                name = f"sampler{k}.{i}.{part}"
                tasks.append(
                    TrainingTask(
                        name=name, kind="sampler", worker=worker, demand={"cpu": 1.0}, execution_s=sampler_s
                    )
                )
                stream = (i * problem.machines + k) * samplers + part
                rows = partial(_rows, problem, train[part::samplers], size, drawn, stream)
                whole = rows(None)
                fetched = whole if cached is None else rows(cached.machines[k].ids)
                flows += [
                    Flow(source=f"store{store}", target=name, size_bytes=_sizes(counts * row_bytes))
                    for store, counts in enumerate(fetched.T)
                ]
                flows.append(
                    Flow(source=name, target=worker, size_bytes=_sizes(whole.sum(axis=1) * row_bytes))
                )
            for end in (f"server{p}" for p in range(servers)):
                share = model_bytes / servers
                flows.append(Flow(source=worker, target=end, size_bytes=share))
                flows.append(Flow(source=end, target=worker, size_bytes=share))
    places = workers_per_host + 1.0 if room is None else room
    have = {"gpu": places, "cpu": places * samplers + servers}
    return TaskSet(
        iterations=iterations,
        tasks=tuple(tasks),
        flows=tuple(flows),
        prefetch=prefetch,
        hosts={host: dict(have) for host in hosts},
    )


def _rows(
    problem: CacheProblem,
    train: NDArray[np.int64],
    size: int,
    drawn: int,
    stream: int,
    cached: NDArray[np.int64] | None,
) -> Vector:
    """Rows of each store in so many drawn iterations, or as expected in any, [iterations or 1, machines]."""
    if drawn:
        return sampled_rows(problem, train, size, drawn, stream=stream, cached=cached)
    return expected_rows(problem, train, size, cached=cached)[None]


def _sizes(values: Vector) -> float | tuple[float, ...]:
    """Bytes of each iteration, or of all."""
    found = tuple(values.tolist())
    return found if len(found) > 1 else found[0]
