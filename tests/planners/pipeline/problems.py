"""Small random models on small clusters."""

from __future__ import annotations

import numpy as np

from wirewise.cost import Links
from wirewise.planners.pipeline import PipelineProblem
from wirewise.trace import StageModule, StageTrace


def random_trace(seed: int, modules: int, *, skips: int = 0) -> StageTrace:
    random = np.random.default_rng(seed)
    names = [f"m{number}" for number in range(modules)]
    edges = {(names[i], names[i + 1]) for i in range(modules - 1)} if skips else set()
    for _ in range(skips):
        first, second = sorted(random.choice(modules, 2, replace=False).tolist())
        edges.add((names[first], names[second]))
    forward = random.uniform(0.5, 2.0, modules)
    return StageTrace(
        modules=tuple(
            StageModule(
                name=name,
                forward_s=(float(f), float(1.6 * f)),
                backward_s=(float(2 * f), float(3.4 * f)),
                output_bytes=float(random.integers(0, 400)),
                saved_bytes=float(random.integers(400, 2000)),
                parameter_bytes=float(random.integers(0, 3000)),
                optimizer_s=float(random.uniform(0, 0.1)),
            )
            for name, f in zip(names, forward, strict=True)
        ),
        sizes=(1, 2),
        edges=tuple(sorted(edges, key=lambda edge: (int(edge[0][1:]), int(edge[1][1:])))),
        input_bytes=200.0,
    )


def random_problem(seed: int, *, most_ranks: int = 8, most_modules: int = 6) -> PipelineProblem:
    """Ranks on one or several hosts, samples that divide in several ways, memory that is plenty or scarce."""
    random = np.random.default_rng(1000 + seed)
    trace = random_trace(seed, int(random.integers(1, most_modules + 1)))
    per_host = int(random.choice([1, 1, 2]))
    hosts = int(random.integers(1, most_ranks // per_host + 1))
    links = Links.uniform(
        hosts,
        float(random.choice([100.0, 1000.0, 1e5])),
        0.01,
        ranks_per_host=per_host,
        intra_bytes_per_s=5e3,
    )
    batch = int(links.world_size * random.choice([1, 2, 4, 6]))
    weights = sum(module.parameter_bytes for module in trace.modules)
    memory = random.choice([np.inf, 2.0, 4.0, 6.0, 8.0]) * (weights + 2000.0)
    return PipelineProblem(trace, links, batch, float(memory))
