"""Random problems of a known kind."""

import numpy as np

from wirewise.cost.curve import ZERO, Curve
from wirewise.cost.links import Links
from wirewise.planners.fusion import FusionProblem, Module
from wirewise.planners.fusion.cupcake import CompressionProblem, Option
from wirewise.trace.modules import Overhead

PLACES = ("inline", "lazy", "queue")


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


def flat_then_linear(seconds, elements):
    return Curve(((elements, seconds), (2 * elements, 2 * seconds)))


def random_compression(seed, kind):
    """Sizes, times and options by kind: linear, flat, decode, codecs, inline, beside (encoding beside the rest)."""
    random = np.random.default_rng([seed, sum(map(ord, kind))])
    count = int(random.integers(2, 4)) if kind in ("codecs", "beside", "inline") else 1
    n = int(random.integers(1, 13 if count < 3 else 11))
    elements = np.maximum(1, 1e6 * random.random(n) ** 3).astype(int)
    busy = random.uniform(0.1, 2.0) / n

    def line():
        return Curve.line(*(random.choice([0.0, 1.0]) * random.uniform(0, [busy, 3e-6 * busy])))

    def curve():
        return (
            line()
            if kind == "linear"
            else flat_then_linear(random.uniform(0, busy), random.uniform(1e4, 1e6))
        )

    options = []
    for i in range(count):
        place = "inline" if kind in ("linear", "flat", "inline") else str(random.choice(PLACES))
        decode = ZERO if kind == "linear" and random.random() < 0.5 else curve()
        # Where nothing is compressed nothing is decoded apart.
        codec = "codec" if i == 0 else "none" if place == "inline" else f"codec{i}"
        options.append(Option(codec, "all_reduce", place, curve(), line(), decode))
    return CompressionProblem(
        elements=elements.tolist(),
        gaps_s=(busy * random.random(n)).tolist(),
        options=tuple(options),
        forward_s=float(random.random()),
        encode_contention=float(random.random()) if kind == "beside" else None,
    )
