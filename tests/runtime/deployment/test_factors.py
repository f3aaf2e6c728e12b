"""Gradients of linear layers from sufficient factors, against those that are summed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.deployment.examples import batches, chain, deployed, group, plan_of
from wirewise.errors import InputError
from wirewise.runtime.deployment.factors import FactorExchange, factors_are_smaller
from wirewise.runtime.pipeline import LayerGraph
from wirewise.runtime.transport import transport_of

CHAIN = ("in", "wide", "act", "out")


def _gradients(deployment):
    return {name: p.grad.clone() for name, m in deployment.modules.items() for p in m.parameters()}


@pytest.mark.parametrize("rows", [{0: 4, 1: 4}, {0: 1, 1: 5, 2: 2}])
def test_f6_gradients_are_those_of_an_all_reduce(rows):
    plans = [
        plan_of(len(rows), [group(CHAIN, rows)]),
        plan_of(len(rows), [group(CHAIN, rows, "duplicate", duplicated=("in", "wide", "out"))]),
    ]
    summed, made = (deployed(chain(), plan, batches(1), _gradients) for plan in plans)
    for (_, _, wanted), (_, _, found) in zip(summed, made, strict=True):
        assert found.keys() == wanted.keys()
        assert all(torch.allclose(found[name], value, atol=1e-5) for name, value in wanted.items())


def test_f6_rows_of_several_places_travel_together():
    torch.manual_seed(2)
    layer, x, delta = nn.Linear(4, 3), torch.randn(5, 7, 4), torch.randn(5, 7, 3)
    shares = (1, 3, 1)

    def rank(number, bare, store):
        own, start = copy.deepcopy(layer), sum(shares[:number])
        group = transport_of(bare, timeout_s=10.0, store=store)
        factors = FactorExchange({"layer": own}, shares, group, 0, "a test")
        factors.begin()
        rows = x[start : start + shares[number]].requires_grad_()
        own(rows).backward(delta[start : start + shares[number]])
        assert own.weight.grad is None
        factors.exchange()
        factors.multiply()
        factors.close()
        assert "forward" not in own.__dict__
        group.close()
        return own.weight.grad, own.bias.grad, rows.grad, factors.bytes_sent

    layer(x).backward(delta)
    found = run_ranks_as_threads(3, rank)
    for weight, bias, _, sent in found:
        assert torch.allclose(weight, layer.weight.grad, atol=1e-5)
        assert torch.allclose(bias, layer.bias.grad, atol=1e-5)
        # A ring: everything goes by each rank but what the next one has itself.
        assert sent in {4 * 7 * (4 + 3) * (5 - share) for share in shares}
    assert torch.allclose(torch.cat([gradient for *_, gradient, _ in found]), delta @ layer.weight, atol=1e-5)


def test_a_layer_that_is_called_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(self.layer(x))

    layers = LayerGraph({"twice": Twice(), "out": nn.Linear(6, 4)})
    plan = plan_of(2, [group(("twice", "out"), {0: 4, 1: 4}, "duplicate", duplicated=("twice",))])
    with pytest.raises(InputError, match=r"'twice\.layer' has 2 backward passes in a step; expected one"):
        deployed(layers, plan, batches(1))


def test_f6_factors_pay_with_few_rows():
    assert factors_are_smaller(8, 2048, 2048, 2) and not factors_are_smaller(8192, 2048, 2048, 2)
    assert factors_are_smaller(1023, 4096, 4096, 4) and not factors_are_smaller(1024, 4096, 4096, 4)
