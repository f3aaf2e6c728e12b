"""Small random jobs that fail, and the profile of a large one."""

from __future__ import annotations

import numpy as np

from wirewise.cost import Links
from wirewise.planners.recovery import RecoveryProblem, problem_of
from wirewise.trace import ProtectedStage, RecoveryTrace, StageMessages

LIMIT_BYTES = 8e11
"""Budget of logs of the profile as it was published, for 100 steps."""


def job(
    compute_s: list[float],
    sizes: list[float],
    *,
    ranks: list[tuple[int, ...]] | None = None,
    skips: tuple[tuple[int, int], ...] = (),
    weights: list[float] | None = None,
    state_bytes: float = 1e7,
    **more: object,
) -> RecoveryTrace:
    """A chain of stages with as many bytes each way over each cut, and edges past neighbours."""
    count = len(compute_s)
    pairs = [(i, i + 1, size) for i, size in enumerate(sizes)] + [(*skip, 5e5) for skip in skips]
    given = {"step_s": 1.5 * max(compute_s), "microbatches": 8} | more
    return RecoveryTrace(
        stages=tuple(
            ProtectedStage(
                ranks=ranks[n] if ranks else (n,),
                compute_s=compute_s[n],
                state_bytes=state_bytes * (1 + n),
                gradient_bytes=state_bytes / 4,
                failure_weight=weights[n] if weights else 1.0,
            )
            for n in range(count)
        ),
        messages=tuple(
            StageMessages(source=a, target=b, size_bytes=size)
            for source, target, size in pairs
            for a, b in ((source, target), (target, source))
        ),
        **given,
    )


def random_problem(seed: int, most: int = 7, **limits: float) -> RecoveryProblem:
    """Stages that fail unevenly, a few with replicas, and now and then an edge past a neighbour."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, most + 1))
    ranks, rank = [], 0
    for _ in range(count):
        copies = 1 + int(random.random() < 0.25)
        ranks.append(tuple(range(rank, rank + copies)))
        rank += copies
    skips = ((0, count - 1),) if count > 2 and random.random() < 0.5 else ()
    trace = job(
        random.uniform(0.01, 0.1, count).tolist(),
        (1e5 * random.integers(1, 40, count - 1)).astype(float).tolist(),
        ranks=ranks,
        skips=skips,
        weights=random.uniform(0.5, 2.0, count).tolist(),
    )
    return problem_of(trace, Links.uniform(rank, 1e9, 1e-4), mtbf_s=600.0, **limits)


def large_profile(seed: int | None = None) -> RecoveryProblem:
    """16 machines whose computing falls from 4.2 to 0.25 s, equal cuts or random ones (seed)."""
    compute = np.geomspace(4.2, 0.25, 16)
    random = np.random.default_rng(seed)
    sizes = np.full(15, 1.0) if seed is None else random.uniform(0.3, 1.7, 15)
    # What lies in memory counts, and reading it takes no time, as in the published formula.
    trace = job(
        compute.tolist(),
        (1e9 * sizes).tolist(),
        step_s=6.0,
        memory_log_bytes_per_s=1e18,
        disk_log_bytes_per_s=1e18,
        # Stages one after the other.
        microbatches=1,
    )
    links = Links.uniform(16, 5e10, 1e-5)
    return problem_of(trace, links, mtbf_s=4 * 3600.0, disk_price=1.0)
