"""Blocks in which gradients are missing: noticed before the others wait for them, or taken as zeros on request."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.runtime.recovery.reduction import Reduction, ReductionConfig
from wirewise.runtime.recovery.sync import Buckets
from wirewise.runtime.transport import Transport


def reduction_of(group, unused="error", shares=2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    way = ReductionConfig(Buckets(unused=unused))
    return model, Reduction(way, model, Transport(group, timeout_s=20), shares)


def fail(gradient):
    raise ValueError("a mistake in the backward pass")


def look(rank, group, store):
    model, reduction = reduction_of(group)
    reduction.begin(0)
    found = [reduction.missing(0)]
    if rank == 0:
        # The last parameters have their gradients by then; a bucket of all has not.
        activation = model[0](torch.ones(2, 3))
        activation.register_hook(fail)
        with pytest.raises(ValueError):
            model[1](activation).sum().backward()
    found.append(reduction.missing(0))
    model.zero_grad(set_to_none=True)
    model(torch.ones(2, 3)).sum().backward()
    found.append(reduction.missing(0))
    reduction.finish()
    return found


def test_gradients_that_others_wait_for_are_missed_before_they_do():
    assert run_ranks_as_threads(2, look) == [["all", "some", ""], ["all", "all", ""]]


def look_twice(rank, group, store):
    model, reduction = reduction_of(group, shares=4)
    found = []
    for place, backward in enumerate((True, False)):
        reduction.begin(place)
        with reduction.share_context(place, None):
            if backward:
                model(torch.ones(2, 3)).sum().backward()
            found.append(reduction.missing(place))
    model(torch.ones(2, 3)).sum().backward()
    return [*found, reduction.missing(1)]


def test_a_share_without_gradients_is_missed_behind_one_with_gradients():
    assert run_ranks_as_threads(2, look_twice) == [["", "all", ""]] * 2


def skip(rank, group, store, skipping):
    model, reduction = reduction_of(group, "zeros")
    gradients = []
    for backward in (rank not in skipping, True):
        model.zero_grad(set_to_none=True)
        reduction.begin(0)
        if backward:
            model((rank + 1) * torch.ones(2, 3)).sum().backward()
        assert reduction.missing(0) == ""
        reduction.finish()
        gradients.append(None if model[1].bias.grad is None else float(model[1].bias.grad))
    return gradients


@pytest.mark.parametrize(("skipping", "mean"), [([1], 1.0), ([0, 1], None)])
def test_a_rank_may_skip_a_batch_where_unused_gradients_are_zeros(skipping, mean):
    first, second = run_ranks_as_threads(2, skip, skipping)
    assert first == second == [mean, 2.0]
