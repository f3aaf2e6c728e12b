"""Implementations that must agree."""

import torch

from tests.codec.gradients.groups import codec_of, decode, encode


def same(name, gradient, segments, memory=None, *, options=None, **draw):
    results = []
    for implementation in ("numba", "torch"):
        codec = codec_of(name, implementation, **(options or {}))
        kept = None if memory is None else memory.clone()
        payload = encode(codec, gradient, segments, kept, **draw)
        rows = torch.stack([payload, payload.clone()])
        results.append((payload, kept, decode(codec, rows, segments, scale=0.5, seed=draw.get("seed", 0))))
    (bytes_a, kept_a, sum_a), (bytes_b, kept_b, sum_b) = results
    if name == "powersgd":
        # Of products only the exact value is defined.
        for a, b in zip(*((one[0].view(torch.float32), *one[1:]) for one in results), strict=True):
            assert a is None or (a - b).abs().max() <= 1e-5 * b.abs().max()
        return
    assert torch.equal(bytes_a, bytes_b)
    assert torch.equal(sum_a, sum_b)
    assert memory is None or torch.equal(kept_a, kept_b)
