"""Clipping, scalers, closures and schedules of scripts around a pipeline's own update."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import batches, chain, loss, plan_for
from wirewise.errors import InputError
from wirewise.runtime.pipeline import Pipeline


class Clipping(torch.optim.SGD):
    """Clips what it is given before it steps, as wrappers of optimizers do."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


class Trusting(torch.optim.SGD):
    """Scales each step by norms of its parameter and gradient, as LARS does: of one parameter, and right in stages."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(p.norm() / (p.grad.norm() + 1.0))
        return super().step(closure)


def train_in_stages(optimizer, positions, after=lambda parameters: None, **more):
    plan = plan_for(chain(4), positions, style="1f1b", microbatches=2)

    # Before ranks are threads, whose random numbers would mix.
    built = [chain(4) for _ in range(positions)]

    def body(rank, group, store):
        made = built[rank]
        pipeline = Pipeline(
            made,
            plan,
            loss=loss,
            optimizer=optimizer,
            process_group=group,
            store=store,
            timeout_s=20.0,
            **more,
        )
        try:
            for _ in pipeline.train(batches(2, plan)):
                after(list(pipeline.weights.named.values()))
            return {name: p.detach().clone() for name, p in pipeline.weights.named.items()}
        finally:
            pipeline.close()

    return run_ranks_as_threads(positions, body)


def refusal(optimizer, after=lambda parameters: None, **more):
    with pytest.raises(InputError) as refused:
        train_in_stages(optimizer, 2, after, **more)
    return str(refused.value)


def test_an_optimizer_that_clips_the_parameters_of_one_stage_is_refused():
    text = refusal(lambda ps: Clipping(ps, lr=0.1))
    assert "stage" in text and "Pipeline(clip=" in text


def test_an_optimizer_that_clips_all_parameters_is_right_on_one_rank():
    (clipped,) = train_in_stages(lambda ps: Clipping(ps, lr=0.1), 1)
    (own,) = train_in_stages(lambda ps: torch.optim.SGD(ps, lr=0.1), 1, clip=0.1)
    for name, value in own.items():
        torch.testing.assert_close(clipped[name], value)


def test_norms_of_each_parameter_are_right_in_stages():
    (whole,) = train_in_stages(lambda ps: Trusting(ps, lr=0.1), 1)
    first, second = train_in_stages(lambda ps: Trusting(ps, lr=0.1), 2)
    assert whole.keys() == first.keys() | second.keys()
    for name, value in (first | second).items():
        torch.testing.assert_close(value, whole[name])


@pytest.mark.parametrize(
    "look",
    [
        lambda ps: nn.utils.clip_grad_norm_(ps, 1.0),
        lambda ps: nn.utils.get_total_norm([p.grad for p in ps]),
        lambda ps: [p.grad.norm().item() for p in ps],
        lambda ps: torch.optim.SGD(ps, lr=0.1).step(),
    ],
)
def test_gradients_between_updates_say_that_they_were_taken(look):
    assert "has taken and dropped" in refusal(lambda ps: torch.optim.SGD(ps, lr=0.1), look)


@pytest.mark.parametrize("to_none", [True, False])
def test_zeroing_gradients_between_updates_changes_nothing(to_none):
    def zero(parameters):
        torch.optim.SGD(parameters, lr=0.1).zero_grad(set_to_none=to_none)

    for own, other in zip(
        train_in_stages(lambda ps: torch.optim.SGD(ps, lr=0.1), 2, zero),
        train_in_stages(lambda ps: torch.optim.SGD(ps, lr=0.1), 2),
        strict=True,
    ):
        assert all(torch.equal(own[name], other[name]) for name in other)


def test_an_optimizer_with_a_closure_and_a_schedule_of_a_loss_are_refused():
    assert "LBFGS.step takes 'closure'" in refusal(lambda ps: torch.optim.LBFGS(ps))
    text = refusal(
        lambda ps: torch.optim.SGD(ps, lr=0.1), schedule=torch.optim.lr_scheduler.ReduceLROnPlateau
    )
    assert "ReduceLROnPlateau.step takes 'metrics'" in text


class Scaling(torch.optim.SGD):
    """Looks for infinite gradients itself, as scalers of losses do."""

    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        infinite = torch.zeros(1, dtype=torch.float64)
        torch._amp_foreach_non_finite_check_and_unscale_(
            gradients, infinite, torch.ones(1, dtype=torch.float64)
        )
        return super().step(closure)


def test_a_scaler_that_looks_at_one_stage_is_refused():
    assert "loss_scale" in refusal(lambda ps: Scaling(ps, lr=0.1))


class Reading(torch.optim.SGD):
    """Adds up norms of gradients as Python numbers."""

    def step(self, closure=None):
        sum(p.grad.norm().item() ** 2 for group in self.param_groups for p in group["params"])
        return super().step(closure)


def test_numbers_of_several_gradients_are_warned_of():
    with pytest.warns(UserWarning, match="lacks the other stages"):
        train_in_stages(lambda ps: Reading(ps, lr=0.1), 2)


def test_a_schedule_that_wraps_its_optimizers_step_is_taken():
    moved = train_in_stages(
        lambda ps: torch.optim.AdamW(ps, lr=0.1),
        1,
        schedule=lambda one: torch.optim.lr_scheduler.StepLR(one, 1),
    )
    steady = train_in_stages(lambda ps: torch.optim.AdamW(ps, lr=0.1), 1)
    assert any(not torch.equal(moved[0][name], p) for name, p in steady[0].items())
