"""Random problems of a known kind."""

import numpy as np

from wirewise.cost.links import Links
from wirewise.planners.fusion import FusionProblem, Module
from wirewise.sim.data_parallel import Overhead


def random_problem(
    seed, *, gradients=8, kind="bandwidth", ranks=4, slots=1, stages=False, launch=False, **more
):
    """A chain of modules, each with gradients; "latency": the fixed cost of a bucket is most of its time."""
    random = np.random.default_rng([seed, gradients, slots])
    modules = []
    for i in range(gradients):
        size = 4e6 * random.random() ** 3 + 1e3
        forward, backward = 1e-3 * random.random(), 2e-3 * random.random()
        saved = 8e6 * random.random()
        modules.append(
            Module(
                name=f"m{i}", forward_s=forward, backward_s=backward, gradient_bytes=size, saved_bytes=saved
            )
        )
    total = sum(m.backward_s for m in modules) * random.uniform(0.5, 2.0)
    whole = sum(m.gradient_bytes for m in modules)
    rate, latency = 2 * (ranks - 1) / ranks * whole / total, 1e-6
    if kind == "latency":
        rate, latency = 4 * rate, total / gradients / (2 * (ranks - 1)) * random.uniform(0.5, 2.0)
    per_byte = total / whole
    overhead = Overhead(
        launch_s=1e-4 * launch,
        encode_s=2e-5 * stages,
        encode_s_per_byte=0.3 * per_byte * stages,
        decode_s=2e-5 * stages,
        decode_s_per_byte=0.2 * per_byte * stages,
    )
    return FusionProblem(
        modules=modules,
        hosts=range(ranks),
        links=Links.uniform(ranks, rate, latency),
        comm_slots=slots,
        overhead=overhead,
        **more,
    )
