from __future__ import annotations

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.profile import stage_trace


class Add(nn.Module):
    def forward(self, first, second):
        return first + second


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def test_bytes_and_names_of_a_chain():
    model = mlp()
    found = stage_trace(model, torch.randn(6, 8), sizes=(2, 6), repeats=2, model="mlp")
    first, middle, last = found.modules
    assert [module.name for module in found.modules] == ["0", "1", "2"] and found.is_chain
    assert (first.output_bytes, middle.output_bytes, last.output_bytes) == (64.0, 64.0, 16.0)
    assert first.parameter_bytes == 4 * (8 * 16 + 16) and middle.parameter_bytes == 0
    # A linear layer keeps its input; tanh its input, as every stage does, and its output.
    assert (first.saved_bytes, middle.saved_bytes, last.saved_bytes) == (32.0, 128.0, 64.0)
    assert found.input_bytes == 32.0 and found.sizes == (2, 6) and found.device == "cpu"
    assert all(len(module.forward_s) == len(module.backward_s) == 2 for module in found.modules)
    assert all(min(module.forward_s) > 0 and min(module.backward_s) > 0 for module in found.modules)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_first_module_has_no_gradient_of_its_input():
    """All of its backward pass is for weights; a module without weights has none of that."""
    first, middle, _ = stage_trace(mlp(), torch.randn(2, 8), repeats=1).modules
    assert first.weight_gradient_s == first.backward_s
    assert middle.weight_gradient_s == (0.0,)


def test_linear_layers_have_sufficient_factors():
    """Input and output of each sample stand for the gradients of weight and bias; shared weights are left out."""
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), nn.LayerNorm(4))
    dense, norm = stage_trace(model, torch.randn(6, 8), repeats=1).modules
    assert (dense.factor_bytes, dense.factored_bytes) == (4 * (8 + 16 + 16 + 4), dense.parameter_bytes)
    assert (norm.factor_bytes, norm.factored_bytes) == (0.0, 0.0)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    (whole,) = stage_trace([tied], torch.randn(2, 4), repeats=1).modules
    assert whole.factored_bytes == 0.0


def test_gradients_that_are_there_stay():
    model = mlp()
    model(torch.randn(2, 8)).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    stage_trace(model, torch.randn(2, 8), repeats=1)
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), before, strict=True))


def test_skips_are_edges():
    modules = {"in": nn.Linear(8, 8), "deep": nn.Linear(8, 8), "out": Add()}
    found = stage_trace(modules, torch.randn(2, 8), sources={"out": ("deep", "in")}, repeats=1)
    assert set(found.edges) == {("in", "deep"), ("deep", "out"), ("in", "out")}
    assert found.modules[2].saved_bytes == 64.0


def test_numbers_that_are_no_floats_have_no_gradient():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    found = stage_trace(model, torch.randint(0, 10, (3, 5)), repeats=1)
    assert found.modules[0].output_bytes == 5 * 16 and found.input_bytes == 40


class Two(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stage_trace([], torch.randn(2, 8)), "at least one"),
        (lambda: stage_trace(mlp(), torch.randn(2, 8), sizes=(4,)), "expected sizes of 1 to 2"),
        (lambda: stage_trace(mlp(), torch.randn(2, 8), sizes=()), "expected sizes of 1 to 2"),
        (lambda: stage_trace(mlp(), torch.randn(2, 8), repeats=0), "at least 1 repeat"),
        (lambda: stage_trace([Two()], torch.randn(2, 8)), "module '0' returns a tuple"),
        (
            lambda: stage_trace(mlp(), torch.randn(2, 8), sources={"1": ("2",)}),
            "takes .'2'., of which .'2'. does not come before",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
