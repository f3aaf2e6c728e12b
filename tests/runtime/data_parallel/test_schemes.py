"""Schemes bring the mean of what ranks encode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.carried import NAMES, SIZES, Counting, carried, gradient
from wirewise.codec.gradients import CODECS, Segments, make
from wirewise.runtime.data_parallel import Compression, GroupSender, Pools
from wirewise.runtime.transport import Transport


@pytest.mark.sweep
@pytest.mark.parametrize("codec", [name for name in CODECS if make(name).rounds == 1])
def test_a_gathered_group_is_the_mean_of_what_each_rank_encodes(codec):
    compression, ranks = Compression(seed=5), 3

    def body(carrier, rank):
        flat = gradient(rank, 0)
        carrier.begin(NAMES, flat, codec=codec, scheme="all_gather", step=0).wait()
        return flat

    maker, segments = make(codec), Segments(list(SIZES.values()), ids=range(len(SIZES)))
    payloads = torch.zeros(ranks, maker.size_bytes(segments), dtype=torch.uint8)
    for rank in range(ranks):
        maker.encode(gradient(rank, 0), None, segments, payloads[rank], seed=5, rank=rank)
    expected = torch.zeros(segments.total)
    maker.decode_sum(payloads, segments, expected, scale=1 / ranks, seed=5)
    for flat in carried(ranks, body, compression):
        assert torch.equal(flat, expected)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("scheme", ["all_reduce", "divisible", "hierarchical"])
def test_schemes_bring_the_mean_of_all_elements(scheme, ranks):
    """A7: the mean is written to the group (1), shares need not be equal (9), all-reduces send all of it (11)."""

    def body(carrier, rank):
        flat, small = gradient(rank, 0), gradient(rank, 1)[37:38].clone()
        # Fewer elements than ranks, too.
        for names, tensor in ((NAMES, flat), (("b",), small)):
            carrier.begin(names, tensor, codec="fp16", scheme=scheme).wait()
        return torch.cat([flat, small])

    mean = sum(torch.cat([gradient(r, 0), gradient(r, 1)[37:38]]) for r in range(ranks)) / ranks
    for found in carried(ranks, body, Compression(ranks_per_host=ranks if ranks == 3 else 1)):
        torch.testing.assert_close(found, mean, rtol=2e-3, atol=2e-3)


def test_hosts_of_three_by_two_sum_up_shares_without_a_codec():
    def body(carrier, rank):
        flat = gradient(rank, 0).double()
        carrier.begin(NAMES, flat, codec="none", scheme="hierarchical").wait()
        return flat

    mean = sum(gradient(rank, 0).double() for rank in range(6)) / 6
    for flat in carried(6, body, Compression(ranks_per_host=2)):
        torch.testing.assert_close(flat, mean)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("scheme", ["all_gather", "divisible"])
def test_gradients_travel_uncompressed_by_the_schemes_of_codecs(scheme, ranks):
    """Every rank has the same bits, also of fewer elements than ranks and of half precision."""

    def body(carrier, rank):
        found = []
        for tensor in (
            gradient(rank, 0).double(),
            gradient(rank, 1)[:1].clone(),
            gradient(rank, 2)[:37].bfloat16(),
        ):
            names = {1: ("b",), 37: ("a",)}.get(len(tensor), NAMES)
            carrier.finish([carrier.begin(names, tensor, codec="none", scheme=scheme)])
            found.append(tensor)
        return found

    every = carried(ranks, body, Compression())
    for number, cut in enumerate((slice(None), slice(1), slice(37))):
        mean = sum(gradient(rank, number)[cut].double() for rank in range(ranks)) / ranks
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if number == 2 else {"rtol": 1e-6, "atol": 1e-6}
        for found in every:
            assert torch.equal(found[number], every[0][number])
            torch.testing.assert_close(found[number].double(), mean, **tolerance)


def outer(rank: int) -> Tensor:
    """A matrix of rank 1, flat."""
    return torch.outer(gradient(rank, 0, 10), gradient(rank, 1, 13)).flatten()


@pytest.mark.parametrize(("scheme", "calls"), [("all_reduce", 2), ("all_gather", 1)])
def test_matrices_of_low_rank_come_whole_in_two_rounds(scheme, calls):
    """Two sums over the ranks, each of which needs the one before."""
    options = Compression(options={"powersgd": {"rank": 3}})

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        counting = Counting(group)
        transport = Transport(counting, timeout_s=20, store=store)  # type: ignore[arg-type]
        carrier = GroupSender(transport, Pools(SIZES, options, shapes={"c": (10, 13)}), options)
        flat = outer(rank)
        carrier.finish([carrier.begin(("c",), flat, codec="powersgd", scheme=scheme)])
        carrier.close()
        return flat, len(counting.calls)

    mean = (outer(0) + outer(1)) / 2
    for flat, found in run_ranks_as_threads(2, rank_body):
        torch.testing.assert_close(flat, mean, rtol=1e-4, atol=1e-4)
        assert found == calls
