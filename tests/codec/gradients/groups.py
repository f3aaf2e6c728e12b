"""Codecs of all kinds, and how the tests drive them."""

import math

import numpy as np
import torch

from wirewise.codec.gradients import Segments, make

OPTIONS = {
    "fp16": {},
    "bf16": {},
    "topk": {"ratio": 0.01},
    "randomk": {"ratio": 0.01},
    "efsign": {},
    "signsgd": {},
    "signum": {},
    "onebit": {},
    "qsgd": {"levels": 64},
    "terngrad": {},
    "int8": {},
    "int4": {},
    # Plain error feedback: with momentum the sum of what is sent is not that of the gradients.
    "dgc": {"ratio": 0.01, "momentum": 0.0},
    "powersgd": {"rank": 2},
}
FEEDBACK = tuple(name for name in OPTIONS if name not in ("signsgd", "signum"))


def codec_of(name, implementation="numba", **options):
    return make(name, implementation=implementation, **{**OPTIONS[name], **options})


def whole(v):
    return Segments([len(v)])


def memory_of(codec, size, *seeds):
    """Zeros, or noise, in the shape of the codec's memory."""
    rows = [normal(size, seed) for seed in seeds] or [torch.zeros(size)] * len(codec.memories)
    return rows[0].clone() if len(codec.memories) == 1 else torch.stack(rows[: len(codec.memories)])


def rest_of(memory):
    """What was not sent."""
    return memory if memory.dim() == 1 else memory[0]


def encode(codec, gradient, segments=None, memory=None, out=None, **draw):
    """What one rank sends alone, in all rounds."""
    segments = segments or whole(gradient)
    out = torch.empty(codec.size_bytes(segments), dtype=torch.uint8) if out is None else out
    codec.encode(gradient, memory, segments, out, **draw)
    for number in range(codec.rounds):
        codec.advance(number, out, gradient, memory, segments)
    return out


def decode(codec, payloads, segments, **options):
    out = torch.full((segments.total,), torch.nan)
    codec.decode_sum(payloads, segments, out, **options)
    return out


def sent(codec, gradient, segments=None, memory=None, **draw):
    """What the others learn of one gradient."""
    segments = segments or whole(gradient)
    payload = encode(codec, gradient, segments, memory, **draw)
    draw.pop("rank", None)
    return decode(codec, [payload], segments, **draw)


def normal(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


TENSORS = {"head.weight": 130, "head.bias": 10, "mid.weight": 700, "mid.bias": 25, "stem.weight": 300}


def wire_bytes(name, x):
    """The table of sizes, written down once more."""
    k, side = max(1, math.floor(0.01 * x)), math.ceil(math.sqrt(x))
    blocks, sides = 2 * math.ceil(x / 256), side + math.ceil(x / side)
    return {
        "fp16": 2 * x,
        "bf16": 2 * x,
        "topk": 8 * k,
        "randomk": 4 * k,
        "efsign": math.ceil(x / 8) + 4,
        "signsgd": math.ceil(x / 8),
        "signum": math.ceil(x / 8),
        "onebit": math.ceil(x / 8) + 8,
        "qsgd": x + 4,
        "terngrad": math.ceil(x / 4) + 4,
        "int8": x + blocks,
        "int4": math.ceil(x / 2) + blocks,
        "dgc": 8 * min(max(1, math.floor(1.3 * k)), x) + 4,
        "powersgd": 4 * min(min(2, side) * sides, x),
    }[name]


def vectors(count, size):
    random = np.random.default_rng(0)
    makers = (
        random.standard_normal,
        random.standard_cauchy,
        lambda n: random.laplace(size=n),
        lambda n: random.standard_t(2, n),
    )
    for i in range(count):
        yield torch.from_numpy(makers[i % 4](size).astype(np.float32))


def ratio_of(v, decoded):
    v, decoded = v.double(), decoded.double()
    return float(((v - decoded) ** 2).sum() / (v**2).sum())
