"""Training with random flows, for tests and comparisons."""

from __future__ import annotations

import numpy as np

from wirewise.trace.tasks import Flow, TaskSet, TrainingTask

__all__ = ["random_tasks"]


def random_tasks(
    *,
    hosts: int = 4,
    workers: int = 6,
    samplers: int = 2,
    servers: int = 1,
    iterations: int = 8,
    batch_bytes: float = 15e6,
    gradient_bytes: float = 2e6,
    sampler_s: float = 0.01,
    worker_s: float = 0.05,
    worker_room: int = 2,
    seed: int = 0,
) -> TaskSet:
    """Tasks whose samplers prefer some stores, drawn from a Dirichlet distribution; sizes and times vary by 20 %.

    Args:
        hosts: Named host0, host1, ...; each holds a store.
        workers: Workers that train.
        samplers: Samplers of each worker.
        servers: Servers that share the parameters evenly.
        iterations: Iterations of the record.
        batch_bytes: Bytes that a sampler fetches, and hands on, in an iteration.
        gradient_bytes: Bytes of all gradients of a worker, and of all parameters.
        sampler_s: Seconds of a sampler's execution.
        worker_s: Seconds of a worker's iteration.
        worker_room: Workers that a host has room for.
        seed: Seed of the draws.
    """
    random = np.random.default_rng(seed)

    def varied(mean: float) -> tuple[float, ...]:
        return tuple((mean * random.uniform(0.8, 1.2, iterations)).tolist())

    names = [f"host{h}" for h in range(hosts)]
    tasks = [TrainingTask(name=f"store{h}", kind="store", host=name) for h, name in enumerate(names)]
    flows = []
    for w in range(workers):
        tasks.append(
            TrainingTask(name=f"worker{w}", kind="worker", demand={"gpu": 1}, execution_s=varied(worker_s))
        )
        for s in range(samplers):
            name = f"sampler{w}.{s}"
            tasks.append(
                TrainingTask(
                    name=name,
                    kind="sampler",
                    worker=f"worker{w}",
                    demand={"cpu": 1},
                    execution_s=varied(sampler_s),
                )
            )
            for h, share in enumerate(random.dirichlet(np.full(hosts, 0.5))):
                flows.append(Flow(source=f"store{h}", target=name, size_bytes=varied(share * batch_bytes)))
            flows.append(Flow(source=name, target=f"worker{w}", size_bytes=varied(batch_bytes)))
    for p in range(servers):
        tasks.append(
            TrainingTask(name=f"server{p}", kind="server", demand={"cpu": 1}, execution_s=0.1 * sampler_s)
        )
        for w in range(workers):
            part = gradient_bytes / servers
            flows.append(Flow(source=f"worker{w}", target=f"server{p}", size_bytes=part))
            flows.append(Flow(source=f"server{p}", target=f"worker{w}", size_bytes=part))
    room = {"gpu": float(worker_room), "cpu": float(worker_room * samplers + servers)}
    return TaskSet(
        iterations=iterations, tasks=tuple(tasks), flows=tuple(flows), hosts=dict.fromkeys(names, room)
    )
