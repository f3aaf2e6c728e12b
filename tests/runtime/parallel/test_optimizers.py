"""Optimizers and clipping that look at whole tensors, or at all gradients, on parameters in parts and in stages."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.harness.processes import run_ranks_as_processes
from tests.runtime.parallel.test_training import batches, loss_of, made, plans, wholly
from wirewise.errors import InputError
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import parallelize


def clipped_by_torch(parameters):
    return nn.utils.clip_grad_norm_(parameters, 0.05)


def clipped_to_largest(parameters):
    return nn.utils.clip_grad_norm_(parameters, 0.05, norm_type=float("inf"), foreach=False)


def clipped_by_total(parameters):
    norm = nn.utils.get_total_norm([p.grad for p in parameters])
    nn.utils.clip_grads_with_norm_(parameters, 0.05, norm)
    return norm


def clipped_by_numbers(parameters):
    norm = sum(p.grad.norm().item() ** 2 for p in parameters) ** 0.5
    for p in parameters:
        p.grad.mul_(min(1.0, 0.05 / norm))
    return norm


def clipped_by_sums(parameters):
    norm = sum(p.grad.pow(2).sum() for p in parameters).sqrt()
    for p in parameters:
        p.grad.mul_(min(1.0, 0.05 / float(norm)))
    return norm


class Lamb(torch.optim.Optimizer):
    """Steps as long as the parameter."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            mean = self.state[p].setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.1)
            p.sub_(mean * (p.norm() / (mean.norm() + 1e-3)), alpha=0.02)


OPTIMIZERS = {
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.02),
    "fused": lambda ps: torch.optim.AdamW(ps, lr=0.02, fused=True),
    "foreach": lambda ps: torch.optim.AdamW(ps, lr=0.02, foreach=True),
    "lamb": Lamb,
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.02),
    "lbfgs": lambda ps: torch.optim.LBFGS(ps, lr=0.1, max_iter=2),
}
CLIPS = (
    clipped_by_torch,
    clipped_to_largest,
    clipped_by_total,
    clipped_by_numbers,
    clipped_by_sums,
)
CASES = [(name, None) for name in OPTIMIZERS] + [("foreach", clip) for clip in CLIPS]


def train(model, call, name, clip):
    """Norms of the gradients, and the parameters after two steps."""
    parameters = list(model.parameters())
    optimizer, norms = OPTIMIZERS[name](parameters), []
    for batch in batches()[:2]:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = call(model, batch)
            loss.backward()
            return loss.detach()

        if name == "lbfgs":
            optimizer.step(closure)
            continue
        closure()
        if clip is not None:
            norms.append(float(clip(parameters)))
        optimizer.step()
    whole = {n: (p.full_tensor() if hasattr(p, "full_tensor") else p) for n, p in model.named_parameters()}
    return norms, {n: p.detach().clone() for n, p in whole.items()}


def one_rank(rank, plans):
    results, step = {}, capture_step(*made(), loss_of)
    for plan_name, plan in plans.items():
        for name, clip in CASES:
            model, _ = made()
            parallel = parallelize(model, plan, step, timeout_s=120.0)
            with warnings.catch_warnings(record=True) as noted:
                warnings.simplefilter("always")
                try:
                    result = train(parallel, wholly, name, clip)
                except InputError as error:
                    result = str(error)
            texts = [str(one.message) for one in noted]
            results[plan_name, name, clip] = (result, any("lacks the other stages" in text for text in texts))
    return results


@pytest.mark.dist
@pytest.mark.slow
def test_optimizers_and_clipping_are_those_of_one_process_or_refused_by_name():
    split = {name: plan for name, plan in plans().items() if name != "rows"}
    ranks = run_ranks_as_processes(2, one_rank, split, timeout_s=300.0)
    for name, clip in CASES:
        model, _ = made()
        norms, whole = train(model, loss_of, name, clip)
        for results in ranks:
            for plan_name in split:
                result, noted = results[plan_name, name, clip]
                case = f"{plan_name} {name} {clip}"
                if plan_name == "stages" and (name == "lbfgs" or clip is clipped_by_sums):
                    assert "its result would be that of this stage alone" in result, case
                    continue
                # Python numbers are added up where no tensor can know of it: the script is warned.
                assert noted == (plan_name == "stages" and clip is clipped_by_numbers), case
                if not noted:
                    assert result[0] == pytest.approx(norms, rel=1e-4), case
                    for key, value in result[1].items():
                        torch.testing.assert_close(value, whole[key], rtol=0, atol=1e-4, msg=f"{case} {key}")
