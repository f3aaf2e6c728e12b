"""What passes leave besides outputs: gradients that are none, inputs changed in place, buffers, random numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.harness.processes import run_ranks_as_processes
from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import (
    WIDTH,
    alone,
    batches,
    loss,
    parameters_of,
    piped,
    plan_for,
    worst,
)
from wirewise.errors import InputError
from wirewise.runtime.pipeline import LayerGraph, Pipeline

STYLES = ("gpipe", "1f1b", "eager-split", "zero-bubble", "interleaved", "2bw")


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Moves a parameter whose gradient is zero, and leaves one alone that has none."""
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


class Idle(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


class Experts(nn.Module):
    """Takes one of two layers by the rows of the microbatch; a third is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(linear() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.experts[int(x.sum() > 0)](x)


class Stop(nn.Module):
    """Lets no gradient through."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + 1


class _NegativeZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, -0.0)


class Vanish(nn.Module):
    """Gives back a gradient that is zero with a minus, and not none, as a masked loss without an entry does."""

    def forward(self, x: Tensor) -> Tensor:
        return _NegativeZeros.apply(x)


class Double(nn.Module):
    """Changes its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(1.5)


class Drawn(nn.Module):
    """Scales by Python's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.own = linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x) * random.choice([0.5, 1.0, 2.0])


class Counts(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.own(x) / self.calls


def built(*modules: Any) -> LayerGraph:
    torch.manual_seed(3)
    random.seed(3)
    return LayerGraph(nn.Sequential(*(one() for one in modules)).double())


def idle() -> LayerGraph:
    return built(*[Idle] * 8)


def routed() -> LayerGraph:
    return built(*[Experts] * 8)


def stopped() -> LayerGraph:
    return built(linear, Idle, linear, linear, Stop, linear, linear, linear)


def vanished() -> LayerGraph:
    return built(linear, linear, linear, linear, Vanish, linear, linear, linear)


def in_place() -> LayerGraph:
    plain = lambda: nn.Linear(WIDTH, WIDTH)  # noqa: E731 - tanh keeps its output, which nobody may change
    return built(plain, lambda: nn.ReLU(inplace=True), plain, Double, plain, Double, plain, plain)


def normed() -> LayerGraph:
    norm = nn.utils.parametrizations.spectral_norm
    pair = [linear, lambda: nn.BatchNorm1d(WIDTH), lambda: norm(nn.Linear(WIDTH, WIDTH)), linear]
    return built(*pair * 2)


def shared() -> LayerGraph:
    """The first and the last stage share a weight, of which neither has a gradient."""
    layers = built(*[Idle] * 4)
    modules = dict(layers.modules)
    modules["3"].idle[0].weight = modules["0"].idle[0].weight
    return LayerGraph(modules)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("build", [idle, routed, stopped, vanished, in_place])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.sample(20)
def test_gradients_that_are_none_and_inputs_changed_in_place_are_those_of_one_process(
    build: Any, style: str, recompute: bool
) -> None:
    plan = plan_for(
        build(), 4 if style != "interleaved" else 2, style=style, microbatches=4, recompute=recompute
    )
    expected, losses = alone(build, plan, [batches(3, plan)], adamw)
    found, own = piped(build, plan, 3, adamw)
    assert worst(found, expected) <= 1e-12
    torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)


def _with_replicas(rank: int, names: list[str], plans: list[Any]) -> Any:
    """Weights after three updates of each model."""
    found = []
    for name, plan in zip(names, plans, strict=True):
        pipeline = Pipeline(globals()[name](), plan, loss=loss, optimizer=adamw, clip=1e6, timeout_s=30)
        list(pipeline.train(batches(3, plan, plan.place_of(rank)[1])))
        found.append({n: p.detach().clone() for n, p in pipeline.weights.named.items()})
        pipeline.close()
    return found


@pytest.mark.dist
def test_what_one_replica_or_stage_has_a_gradient_of_all_have() -> None:
    names = ["idle", "routed", "shared"]
    plans = [
        plan_for(globals()[name](), 2 if name != "shared" else 4, style="1f1b", microbatches=4,
                 replicas=2 if name != "shared" else 1)
        for name in names
    ]  # fmt: skip
    ranks = run_ranks_as_processes(4, _with_replicas, names, plans)
    for place, (name, plan) in enumerate(zip(names, plans, strict=True)):
        feeds = [batches(3, plan, replica) for replica in range(plan.replicas)]
        expected, _ = alone(globals()[name], plan, feeds, adamw)
        for found in ranks:
            assert worst(found[place], expected) <= 1e-12, name
    before = parameters_of(shared())["0.idle.0.weight"]
    assert torch.equal(ranks[0][2]["0.idle.0.weight"], before)


@pytest.mark.parametrize("style", ["1f1b", "eager-split"])
def test_passes_done_again_leave_buffers_as_they_were(style: str) -> None:
    kept, again = (plan_for(normed(), 4, style=style, microbatches=4, recompute=r) for r in (False, True))
    found = []
    for plan in (kept, again):
        models = [normed() for _ in range(4)]

        def body(rank: int, group: Any, store: Any, plan: Any = plan, models: Any = models) -> Any:
            pipeline = Pipeline(
                models[rank], plan, loss=loss, optimizer=adamw, process_group=group, store=store, timeout_s=20
            )
            list(pipeline.train(batches(2, plan)))
            state = pipeline.state_dict()
            pipeline.close()
            return state["buffers"] | state["weights"][-1]

        found.append({name: one for own in run_ranks_as_threads(4, body) for name, one in own.items()})
    assert any("running_mean" in name for name in found[0])
    for name, one in found[0].items():
        torch.testing.assert_close(
            found[1][name], one, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_random_numbers_of_python_are_drawn_again_and_counters_are_refused() -> None:
    plan = plan_for(built(*[Drawn] * 4), 1, style="1f1b", microbatches=4, recompute=True)
    expected, losses = alone(lambda: built(*[Drawn] * 4), plan, [batches(2, plan)], adamw)
    found, own = piped(lambda: built(*[Drawn] * 4), plan, 2, adamw)
    torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)
    assert worst(found, expected) <= 1e-12
    with pytest.raises(
        InputError,
        match=r"the forward pass changes 0.calls, 1.calls, 2.calls, 3.calls, and activations are computed again",
    ):
        piped(lambda: built(*[Counts] * 4), plan_for(built(*[Counts] * 4), 1, style="1f1b", microbatches=4,
                                                     recompute=True), 2, adamw)  # fmt: skip


def test_a_value_that_two_stages_take_is_not_changed_in_place() -> None:
    def forked() -> LayerGraph:
        torch.manual_seed(3)
        modules = {"first": linear(), "doubled": Double(), "last": Sum()}
        return LayerGraph({n: m.double() for n, m in modules.items()}, {"last": ("doubled", "first")})

    with pytest.raises(
        InputError, match="stage 1 changes 'first' in place, which another stage takes as it was"
    ):
        piped(forked, plan_for(forked(), 3, style="1f1b", microbatches=3), 1, adamw)


class Sum(nn.Module):
    """Adds two inputs and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y + self.bias
