"""Gradients that are not finite: ranks agree on them and name them."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.data_parallel.carried import NAMES, WAYS, carried, gradient
from wirewise.errors import InputError
from wirewise.runtime.data_parallel import Compression


@pytest.mark.sweep
@pytest.mark.parametrize(("codec", "scheme"), [*WAYS, ("none", "all_reduce")])
def test_ranks_agree_on_what_is_not_finite(codec, scheme):
    def body(carrier, rank):
        flat = gradient(rank, 0)
        carrier.finish([carrier.begin(NAMES, flat.clone(), codec=codec, scheme=scheme)])
        before = carrier.pools.state_dict()
        if rank == 2:
            flat[39] = torch.nan
        carrier.finish([carrier.begin(NAMES, flat, codec=codec, scheme=scheme)])
        after = carrier.pools.state_dict()
        same = all(
            torch.equal(after[kind][name], value)
            for kind in ("residual", "owner", "momentum")
            for name, value in before[kind].items()
        )
        return flat.isnan().all(), same, after["step"]

    results = carried(4, body, Compression(nonfinite="skip", ranks_per_host=2))
    assert all(bad and same and step == 2 for bad, same, step in results)

    def strict(carrier, rank):
        flat = gradient(rank, 0)
        if rank == 2:
            flat[39] = torch.inf
        with pytest.raises(InputError, match=r"gradient of 'c'.*skip") as caught:
            carrier.finish([carrier.begin(NAMES, flat, codec=codec, scheme=scheme)])
        return str(caught.value)

    if codec != "none":
        first, *others = carried(4, strict, Compression(ranks_per_host=2))
        assert others == [first] * 3


def test_a_sum_beyond_the_range_of_the_wire_is_named():
    def body(carrier, rank):
        flat = gradient(rank, 0)
        flat[-1] = 6e4
        with pytest.raises(InputError, match=r"'d' \(of the sum"):
            carrier.begin(NAMES, flat, codec="fp16", scheme="all_reduce").wait()
        return True

    assert all(carried(2, body, Compression()))
