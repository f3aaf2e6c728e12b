"""Two versions of the weights: where they lie, which is used, and that none is copied by a switch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.pipeline.weights import Weights


def made(module: nn.Module, versions: int = 2) -> Weights:
    weights = Weights({"layer": module}, versions)  # type: ignore[arg-type]
    weights.copy_versions()
    return weights


def storages(module: nn.Module) -> list[int]:
    return [p.untyped_storage().data_ptr() for p in module.parameters()]


def step(weights: Weights, by: float) -> None:
    weights.advance()
    for parameter in weights.named.values():
        parameter.data.add_(by)


def test_versions_take_turns_in_two_storages() -> None:
    layer = nn.Linear(3, 3)
    weights, seen, values = made(layer), set[int](), [layer.weight.detach().clone()]
    for update in range(5):
        step(weights, 1.0)
        for version in (update, update + 1):
            weights.use(version)
            seen |= set(storages(layer))
            torch.testing.assert_close(layer.weight.detach(), values[0] + version)
    assert len(seen) == 2 * 2
    weights.originals()
    torch.testing.assert_close(layer.weight.detach(), values[0] + 5)
    assert layer.weight is weights.named["layer.weight"]


def test_a_backward_pass_finds_the_weights_of_its_forward_pass() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    weights = made(layer)
    step(weights, 3.0)
    weights.use(0)
    x = torch.ones(1, 1, requires_grad=True)
    old = layer(x).sum()
    weights.use(1)
    new = layer(x).sum()
    (at_old,) = torch.autograd.grad(old, x, retain_graph=True)
    (at_new,) = torch.autograd.grad(new, x, retain_graph=True)
    assert (float(at_old), float(at_new)) == (2.0, 5.0)
    old.backward()
    assert float(weights.take_gradients(0)["layer.weight"]) == 1.0
    assert weights.take_gradients(1) == {}  # none, not zeros


def test_recurrent_layers_compute_with_the_version_in_use() -> None:
    layer = nn.LSTM(2, 2)
    weights, x = made(layer), torch.ones(1, 2)
    before = layer(x)[0]
    step(weights, 0.5)
    weights.use(1)
    after = layer(x)[0]
    weights.use(0)
    assert torch.equal(layer(x)[0], before) and not torch.equal(after, before)


def test_a_parameter_of_two_modules_is_one_in_every_version() -> None:
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    weights = made(nn.Sequential(first, second))
    assert list(weights.named) == ["layer.0.weight"]
    step(weights, 1.0)
    weights.use(0)
    assert first.weight is second.weight


def test_a_version_that_is_gone_is_not_used() -> None:
    weights = made(nn.Linear(2, 2))
    step(weights, 1.0)
    step(weights, 1.0)
    with pytest.raises(AssertionError, match="version 0 of 1 to 2"):
        weights.use(0)


def test_both_versions_are_saved_and_loaded() -> None:
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    weights, again = made(layer), made(other)
    step(weights, 1.0)
    step(weights, 2.0)
    again.load(weights.state(), 2)
    for version in (1, 2):
        weights.use(version)
        again.use(version)
        assert torch.equal(layer.weight, other.weight)
    again.originals()
    assert torch.equal(other.weight, again.named["layer.weight"])
    with pytest.raises(InputError, match=r"has 1 versions .* expected 2"):
        again.load(weights.state()[:1], 2)


def test_a_model_that_was_loaded_has_the_newest_version_at_once() -> None:
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    weights, again = made(layer), made(other)
    step(weights, 1.0)
    step(weights, 2.0)
    step(weights, 3.0)
    oldest, newest = weights.state()
    again.load([oldest, newest], 3)
    assert not torch.equal(oldest["layer.weight"], newest["layer.weight"])
    assert torch.equal(other.weight, newest["layer.weight"])
