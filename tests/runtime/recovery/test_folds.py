"""Means of gradients that do not depend on the number of processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.runtime.recovery.batches import shares_of
from wirewise.runtime.recovery.folds import OrderedFold
from wirewise.runtime.transport import Transport

SHARES = 4


def gradients(rank, group, store, used):
    model = nn.Linear(5, 3)
    transport = Transport(group, timeout_s=20)
    fold = OrderedFold(model, SHARES, transport)
    for share in shares_of(rank, transport.world_size, SHARES):
        generator = torch.Generator().manual_seed(share)
        model.weight.grad = torch.randn(3, 5, generator=generator)
        model.bias.grad = torch.randn(3, generator=generator) if share in used else None
        fold.keep()
    fold.fold()
    return model.weight.grad, model.bias.grad


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_any_number_of_processes_gets_the_same_bits(processes):
    generators = [torch.Generator().manual_seed(share) for share in range(SHARES)]
    expected = torch.zeros(3, 5)
    for generator in generators:
        expected += torch.randn(3, 5, generator=generator)
    expected /= SHARES
    for weight, bias in run_ranks_as_threads(processes, gradients, {1}):
        assert torch.equal(weight, expected)
        assert bias is not None


def test_a_parameter_that_no_share_used_keeps_no_gradient():
    assert all(bias is None for _, bias in run_ranks_as_threads(2, gradients, set()))
