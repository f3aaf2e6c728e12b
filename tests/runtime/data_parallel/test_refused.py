"""What a plan or a hook cannot carry out is refused by its name, and what it can goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import run_ranks_as_processes
from wirewise.errors import InputError, PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime import data_parallel

pytestmark = pytest.mark.dist
RANKS = 2


def plan_of(model: nn.Module) -> FusionPlan:
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad][::-1]
    size_bytes = sum(4 * p.numel() for _, p in trained)
    buckets = (Bucket(parameters=tuple(name for name, _ in trained), size_bytes=size_bytes),)
    return FusionPlan(planner="one", world_size=RANKS, buckets=buckets)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def message(kind: type[Exception], action: Any) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def sparse(_rank: int) -> list[str]:
    """Words of both hooks about a gradient that is sparse."""
    told = []
    for planned in (False, True):
        model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 2))
        ddp = DistributedDataParallel(model)
        what: Any = {"plan": plan_of(model)} if planned else {"codec": "fp16"}
        ddp.register_comm_hook(*data_parallel.hook(**what, model=model))
        told.append(message(InputError, lambda ddp=ddp: ddp(torch.arange(4)).sum().backward()))
    return told


def test_sparse_gradients_are_refused_by_the_name_of_their_parameter():
    for texts in run_ranks_as_processes(RANKS, sparse):
        assert all("gradient of '0.weight' is sparse" in text and "sparse=False" in text for text in texts)


def own_hook(_rank: int) -> str:
    model = layers()
    wrapped = data_parallel.parallel(model, plan_of(model), torch.optim.SGD(model.parameters(), 0.1))

    def average(_state: Any, _bucket: Any) -> None:
        """Never called."""

    return message(InputError, lambda: wrapped.register_comm_hook(None, average))


def test_a_hook_of_the_script_is_refused_by_its_name():
    assert all("communication hook 'average'" in text for text in run_ranks_as_processes(RANKS, own_hook))


def unfrozen(rank: int) -> tuple[str, bool]:
    """Words about parameters that are trained since the plan, and whether training goes on as they say."""
    model = layers()
    model[0].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrapped = data_parallel.parallel(model, plan_of(model), optimizer)
    model[0].requires_grad_(True)  # type: ignore[index]
    x = torch.full((4, 8), 1.0 + rank)
    text = message(PlanError, lambda: wrapped(x).square().mean().backward())
    wrapped.use(plan_of(model))
    reference = DistributedDataParallel(layers())
    for one in (wrapped, reference):
        one.zero_grad()
        one(x).square().mean().backward()
    optimizer.step()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return text, all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)  # type: ignore[arg-type]


def test_unfreezing_is_refused_and_goes_on_with_another_plan():
    for text, equal in run_ranks_as_processes(RANKS, unfrozen):
        assert "added: 0.weight, 0.bias" in text and "use(plan)" in text and equal


def with_lbfgs(rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found = []
    for planned in (True, False):
        model = layers()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        wrapped = (
            data_parallel.parallel(model, plan_of(model), optimizer)
            if planned
            else DistributedDataParallel(model)
        )

        def closure(wrapped: nn.Module = wrapped, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = wrapped(torch.full((4, 8), 1.0 + rank)).square().mean()
            loss.backward()
            return loss.detach()

        for _ in range(3):
            optimizer.step(closure)
        found.append([p.detach().clone() for p in model.parameters()])
    return found[0], found[1]


def test_an_optimizer_that_calls_its_closure_several_times_trains_as_with_ddp():
    for ours, theirs in run_ranks_as_processes(RANKS, with_lbfgs):
        assert all(map(torch.equal, ours, theirs))
