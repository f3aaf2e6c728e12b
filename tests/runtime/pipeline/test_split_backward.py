"""Both parts of a back-propagation give together what the whole one gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.pipeline.examples import WIDTH, Add
from wirewise.runtime.pipeline.split_backward import SplitBackward


class _Shared(nn.Module):
    """One weight on the way to the input twice, and once beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.gain = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.own(torch.tanh(self.own(x * self.gain))) + self.gain


class _Counting(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        _Counting.calls += 1
        return grad


class _Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(_Counting.apply(x))


def _attention() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "stack": lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU(), nn.Linear(9, WIDTH), nn.LayerNorm(WIDTH)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 3, 3, padding=1), nn.BatchNorm1d(3), nn.Flatten()
    ),
    "shared": _Shared,
    "attention": lambda: nn.Sequential(nn.Unflatten(0, (1, 4)), _attention(), nn.Flatten(0, 1)),
    "no weights": nn.Tanh,
    "nothing": nn.Identity,
}


@pytest.mark.parametrize("name", BUILDS)
def test_gradients_are_those_of_a_whole_back_propagation(name: str) -> None:
    torch.manual_seed(1)
    model = BUILDS[name]().double()
    x = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
    for times in (1, 2):
        out = model(x)
        gradient = torch.randn_like(out)
        out.backward(gradient)
        own = x.grad.clone()
        whole = [p.grad.clone() for p in model.parameters()]
        x.grad = None
        model.zero_grad()
        for _ in range(times):
            split = SplitBackward([model(x)], [gradient], [x], list(model.parameters()))
            (found,) = split.input_gradients()
            assert all(p.grad is None or times == 2 for p in model.parameters())
            split.weight_gradients()
            torch.testing.assert_close(found, own, rtol=0, atol=1e-12)
        for p, expected in zip(model.parameters(), whole, strict=True):
            torch.testing.assert_close(p.grad, times * expected, rtol=0, atol=1e-12)
        model.zero_grad()


def test_several_inputs_and_outputs_some_of_which_need_no_gradient() -> None:
    torch.manual_seed(1)
    first, second = Add().double(), nn.Linear(WIDTH, WIDTH).double()
    x, skip, mask = (torch.randn(3, WIDTH, dtype=torch.float64) for _ in range(3))
    x.requires_grad_()
    skip.requires_grad_()

    def outputs() -> list[Tensor]:
        middle = first(x, skip)
        return [middle, second(middle * mask), mask * 2]

    parameters = [*first.parameters(), *second.parameters()]
    gradients = [torch.randn(3, WIDTH, dtype=torch.float64) for _ in range(3)]
    torch.autograd.backward(outputs()[:2], gradients[:2])
    expected = [t.grad.clone() for t in (x, skip, *parameters)]
    for tensor in (x, skip, *parameters):
        tensor.grad = None
    split = SplitBackward(outputs(), gradients, [x, skip], parameters)
    found = split.input_gradients()
    split.weight_gradients()
    for own, other in zip([*found, *(p.grad for p in parameters)], expected, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-12)


def test_an_input_that_the_outputs_do_not_depend_on_has_no_gradient() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    x, unused = torch.randn(2, WIDTH, requires_grad=True), torch.randn(2, requires_grad=True)
    split = SplitBackward([layer(x)], [torch.ones(2, WIDTH)], [x, unused], list(layer.parameters()))
    assert split.input_gradients()[1] is None
    split.weight_gradients()
    assert layer.weight.grad is not None


def test_the_way_to_the_inputs_runs_once() -> None:
    _Counting.calls = 0
    model = nn.Sequential(_Counted(), _Counted(), _Counted())
    x = torch.randn(2, WIDTH, requires_grad=True)
    split = SplitBackward([model(x)], [torch.ones(2, WIDTH)], [x], list(model.parameters()))
    split.input_gradients()
    assert _Counting.calls == 3
    split.weight_gradients()
    assert _Counting.calls == 3
