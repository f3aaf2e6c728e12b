"""Compressed gradients at run time: what comes is the mean of what was sent, whatever the plan."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.harness.threads import run_ranks_as_threads
from wirewise.codec.gradients import CODECS, Segments, make
from wirewise.runtime.data_parallel import Carrier, Compression, Pools
from wirewise.runtime.full_graph.transport import Transport

SIZES = {"a": 37, "b": 1, "c": 130, "d": 24}
NAMES = tuple(SIZES)
LINEAR = [name for name in CODECS if make(name).linear]
WAYS = [(codec, scheme) for codec in CODECS for scheme in ("all_gather", "divisible", "hierarchical")]
WAYS += [(codec, "all_reduce") for codec in LINEAR] + [("none", "all_reduce"), ("none", "hierarchical")]


def gradient(rank: int, step: int, sizes: dict[str, int] = SIZES) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(sum(sizes.values()), generator=generator)


def carried(ranks: int, body: Any, compression: Compression, sizes: dict[str, int] = SIZES) -> list[Any]:
    """`body(carrier, rank)` on every rank."""

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        transport = Transport(group, timeout_s=20, store=store)
        carrier = Carrier(transport, Pools(sizes, compression), compression)
        try:
            return body(carrier, rank)
        finally:
            carrier.close()

    return run_ranks_as_threads(ranks, rank_body)


@pytest.mark.parametrize("decode", ["inline", "lazy", "queue"])
@pytest.mark.parametrize(("codec", "scheme"), WAYS)
def test_all_ranks_hold_the_same_bits(codec, scheme, decode):
    def body(carrier, rank):
        found = []
        for step in range(2):
            flat = gradient(rank, step)
            one = carrier.begin(NAMES, flat, codec=codec, scheme=scheme, decode=decode)
            carrier.finish([one])
            found.append(flat)
        assert one.sent_bytes > 0 and set(one.spans) == {"encode", "communicate", "decode"}
        return found

    first, *others = carried(4, body, Compression(ranks_per_host=2, options={"topk": {"ratio": 0.1}}))
    for other, step in itertools.product(others, range(2)):
        assert torch.equal(other[step], first[step])
    assert all(torch.isfinite(flat).all() and flat.abs().sum() > 0 for flat in first)


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_gathered_group_is_the_mean_of_what_each_rank_encodes(codec):
    compression, ranks = Compression(seed=5), 3

    def body(carrier, rank):
        flat = gradient(rank, 0)
        carrier.begin(NAMES, flat, codec=codec, scheme="all_gather").wait()
        return flat

    maker, segments = make(codec), Segments(list(SIZES.values()), ids=range(len(SIZES)))
    payloads = torch.zeros(ranks, maker.size_bytes(segments), dtype=torch.uint8)
    for rank in range(ranks):
        memory = None if maker.memory is None else torch.zeros(segments.total)
        maker.encode(gradient(rank, 0), memory, segments, payloads[rank], seed=5, rank=rank)
    expected = torch.zeros(segments.total)
    maker.decode_sum(payloads, segments, expected, scale=1 / ranks, seed=5)
    for flat in carried(ranks, body, compression):
        assert torch.equal(flat, expected)
