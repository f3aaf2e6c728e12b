"""What modules keep, against what is known of a few layers and what a whole step takes."""

import json

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.planners.fusion import Decision, FusionProblem, MemorySizes, Module, peak_bytes, with_memory
from wirewise.profile import memory_sizes
from wirewise.profile.memory import LiveBytes

FLOAT = 4
ROWS, WIDTH, HIDDEN = 64, 32, 128


class Block(nn.Module):
    """Holds its parameters itself, so that it is one module of a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(0.1 * torch.randn(HIDDEN, WIDTH))
        self.down = nn.Parameter(0.1 * torch.randn(WIDTH, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.linear(functional.gelu(functional.linear(x, self.up)), self.down)


def test_live_bytes_follow_tensors():
    first = torch.ones(100)
    with LiveBytes([first]) as live:
        assert live.bytes == 400
        view = first[:10].view(2, 5)
        both = first + first
        assert live.bytes == live.peak_bytes == 800
        del both
        assert live.bytes == 400 and live.restart() == 800
        view.add_(1)
        assert live.peak_bytes == 400


def test_a_chain_of_plain_layers():
    sizes = memory_sizes(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(ROWS, 8, requires_grad=True)
    )
    # The ReLU and the layer behind it keep one and the same tensor.
    assert sizes["0"]["saved_bytes"] == FLOAT * ROWS * (8 + 16)
    assert sizes["2"]["saved_bytes"] == 0
    # Of what the first one keeps, the result of the ReLU stays where only the layer is computed again.
    assert sizes["0"]["input_bytes"] == sizes["0"]["saved_bytes"]
    assert list(sizes) == ["0", "2"]


def test_a_block_keeps_more_than_its_input():
    sizes = memory_sizes(nn.Sequential(Block(), Block()), torch.randn(ROWS, WIDTH))
    for one in sizes.values():
        assert one["saved_bytes"] == FLOAT * ROWS * (WIDTH + 2 * HIDDEN)
        assert one["input_bytes"] == FLOAT * ROWS * WIDTH
        # The gradients of the hidden layer before and behind the activation, at least.
        assert one["workspace_bytes"] >= FLOAT * ROWS * HIDDEN


def test_bfloat16_keeps_less():
    model, x = nn.Sequential(Block()), torch.randn(ROWS, WIDTH, requires_grad=True)
    one = memory_sizes(model, x, bfloat16=True)["0"]
    saved, _, workspace = one["bfloat16_bytes"]
    # Without the copies of both weights that autocast keeps.
    assert saved == one["saved_bytes"] / 2
    assert 0 < workspace < one["workspace_bytes"]


def test_gradients_and_hooks_are_as_before():
    model, x = nn.Sequential(Block(), nn.Linear(WIDTH, 3)), torch.randn(ROWS, WIDTH)
    model(x).sum().backward()
    before = [p.grad for p in model.parameters()]
    copies = [g.clone() for g in before]
    first = memory_sizes(model, (x,), loss=lambda y: y.square().mean())
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, copies, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert memory_sizes(model, {"input": x}).keys() == first.keys()


def problem_of(model, sizes):
    modules = [
        Module(
            name=name,
            forward_s=1e-3,
            backward_s=2e-3,
            gradient_bytes=float(sum(p.nbytes for p in part.parameters())),
        )
        for name, part in model.named_children()
    ]
    links = Links.uniform(2, 1e8, 1e-4)
    problem = FusionProblem(modules=modules, hosts=range(2), links=links, state_factor=1.0)
    read = msgspec.json.decode(json.dumps(sizes).encode(), type=dict[str, MemorySizes])
    return with_memory(problem, read)


def peak_of(model, x):
    """Peak of weights and all that a step makes, without gradients that are done."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    with LiveBytes([*model.parameters(), x]) as live:
        model(x).sum().backward()
    return live.peak_bytes


def test_the_peak_under_bfloat16():
    model, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(4 * ROWS, WIDTH)
    problem = problem_of(model, memory_sizes(model, x, bfloat16=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = peak_of(model, x)
    assert peak_bytes(problem, Decision((), precision="bfloat16")) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize("again", [(), (0, 1, 2, 3), (1, 3)])
def test_the_peak_that_the_planner_estimates_from_them(again):
    model, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(4 * ROWS, WIDTH)
    problem = problem_of(model, memory_sizes(model, x))
    for i in again:
        model[i].forward = lambda x, own=model[i].forward: checkpoint(own, x, use_reentrant=False)
    estimate = peak_bytes(problem, Decision((), recompute=frozenset(again)))
    assert estimate == pytest.approx(peak_of(model, x), rel=0.06)


def test_wrong_models_are_refused():
    x = torch.randn(ROWS, WIDTH)
    with pytest.raises(InputError, match="without a trained parameter"):
        memory_sizes(nn.ReLU(), x)
    with pytest.raises(InputError, match="does not depend"):
        memory_sizes(Block(), x, loss=lambda _: torch.zeros(()))
    with torch.no_grad(), pytest.raises(InputError, match="no_grad"):
        memory_sizes(Block(), x)
