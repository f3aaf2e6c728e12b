"""Seeded random job queues as in TapFinger, and harder ones: load swings, unseen kinds, noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, tanh

import numpy as np

from wirewise.errors import InputError
from wirewise.trace.queues import EdgeCluster, JobKind, JobQueue, QueuedJob

__all__ = ["EVEN", "UNEVEN", "draw_queue", "edge_kinds", "numbered_clusters"]

EVEN = ((16, 16),) * 3
"""CPUs and accelerators of TapFinger's three equal clusters."""
UNEVEN = ((4, 4), (8, 8), (12, 12), (16, 16), (24, 24), (32, 32))
"""CPUs and accelerators of TapFinger's six unequal clusters."""

_MOST = 16
"""Processors and accelerators that its kinds have a use for."""


def edge_kinds() -> dict[str, JobKind]:
    """TapFinger's two synthetic kinds: images take four slots with any amount, text fewer with more accelerators."""
    rows = _MOST + 1
    return {
        "image": JobKind(progress=((0.25,) * rows,) * rows, cpus=2, gpus=1),
        "text": JobKind(
            progress=(tuple(tanh(gpus / _MOST) for gpus in range(rows)),) * rows, ceiling=1.2, cpus=2, gpus=1
        ),
    }


def numbered_clusters(sizes: Sequence[tuple[int, int]]) -> tuple[EdgeCluster, ...]:
    """Clusters with these CPUs and accelerators, named by their numbers."""
    return tuple(
        EdgeCluster(name=f"cluster{number}", cpus=cpus, gpus=gpus)
        for number, (cpus, gpus) in enumerate(sizes)
    )


def draw_queue(
    clusters: Sequence[tuple[int, int]] = EVEN,
    rate: float = 3.0,
    *,
    jobs: int | None = None,
    kinds: dict[str, JobKind] | None = None,
    swing: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
    slot_s: float = 1.0,
) -> JobQueue:
    """Sample a queue with Poisson arrivals and random kinds and allowed clusters.

    Args:
        clusters: Numbers of CPUs and accelerators of each cluster.
        rate: Mean arrivals per slot; infinite if all jobs arrive in the first.
        jobs: Number of jobs. Defaults to 64 per cluster.
        kinds: Kinds, with equal probability. Defaults to `edge_kinds`.
        swing: Relative amplitude of the arrival rate's sine, with a period of 32 slots.
        noise: Standard deviation of the logarithm of a job's speed, whose median is 1.
        seed: Seed of all random choices.
        slot_s: Length of a slot, in seconds.

    Raises:
        InputError: A figure is out of range.
    """
    if not (rate > 0 and 0 <= swing < 1 and noise >= 0) or (jobs is not None and jobs < 1):
        raise InputError(
            f"got rate {rate}, swing {swing}, noise {noise} and {jobs} jobs; expected a rate above 0, a swing of 0 to "
            "below 1, noise of at least 0 and at least one job"
        )
    generator = np.random.default_rng(seed)
    kinds = edge_kinds() if kinds is None else kinds
    names = list(kinds)
    count = 64 * len(clusters) if jobs is None else jobs
    drawn: list[QueuedJob] = []
    slot = 0
    while len(drawn) < count:
        now = rate * (1.0 + swing * np.sin(2 * np.pi * slot / 32))
        arrived = generator.poisson(now) if rate < inf else count
        for _ in range(min(int(arrived), count - len(drawn))):
            size = int(generator.integers(1, len(clusters) + 1))
            where = np.sort(generator.choice(len(clusters), size, replace=False))
            kind = names[int(generator.integers(len(names)))]
            pace = float(np.exp(noise * generator.standard_normal())) if noise else 1.0
            drawn.append(
                QueuedJob(
                    name=f"job{len(drawn)}",
                    kind=kind,
                    arrival=slot,
                    clusters=tuple(int(c) for c in where),
                    pace=pace,
                )
            )
        slot += 1
    return JobQueue(queue=tuple(drawn), kinds=kinds, clusters=numbered_clusters(clusters), slot_s=slot_s)
