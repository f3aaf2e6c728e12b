"""Codecs of all kinds, and how the tests drive them."""

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
}
FEEDBACK = tuple(name for name in OPTIONS if name not in ("signsgd", "signum"))


def codec_of(name, implementation="numba", **options):
    return make(name, implementation=implementation, **{**OPTIONS[name], **options})


def whole(v):
    return Segments([len(v)])


def encode(codec, gradient, segments=None, memory=None, **draw):
    segments = segments or whole(gradient)
    out = torch.empty(codec.size_bytes(segments), dtype=torch.uint8)
    codec.encode(gradient, memory, segments, out, **draw)
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
