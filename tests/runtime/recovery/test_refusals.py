"""Trainings that cannot be protected are refused by name before the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from wirewise.errors import InputError
from wirewise.runtime.recovery import State, control, protect


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Closed(torch.optim.SGD):
    def step(self, closure):  # type: ignore[override]
        return super().step(closure)


class Sets:
    def state_dict(self) -> Any:
        return {"seen": {1, 2}}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


def refused(told: str, model: nn.Module, optimizer: Any = None, **options: Any) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=told):
        protect(model, optimizer, lambda step, share: torch.ones(1, 2), steps=1, **options)


def test_what_a_step_would_need_is_named(alone) -> None:
    model = nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    refused("got LBFGS, whose step needs closure", model, torch.optim.LBFGS(model.parameters()))
    refused("got Closed, whose step needs closure", model, Closed(model.parameters(), lr=0.1))
    refused(
        "ReduceLROnPlateau, whose step needs metrics",
        model,
        sgd,
        state=State(schedulers=[ReduceLROnPlateau(sgd)]),
    )
    refused("got SparseAdam, which takes sparse gradients", model, torch.optim.SparseAdam(model.parameters()))


def test_models_that_cannot_be_reduced_are_named(alone) -> None:
    refused(r"got Embedding\(sparse=True\)", nn.Embedding(3, 2, sparse=True))
    refused(
        "parameter 'weight' of a lazy module",
        nn.LazyLinear(2),
        torch.optim.SGD([nn.Parameter(torch.ones(1))]),
    )
    refused("got a DataParallel", nn.DataParallel(nn.Linear(2, 2)))


def test_objects_whose_state_cannot_travel_are_named() -> None:
    with pytest.raises(InputError, match=r"objects\['seen'\] cannot travel: a state holds a set"):
        State(objects={"seen": Sets()})
    with pytest.raises(InputError, match=r"objects\['list'\] is a list; expected methods"):
        State(objects={"list": []})  # type: ignore[dict-item]


def test_a_group_of_the_script_under_an_agent_is_named(alone, monkeypatch) -> None:
    monkeypatch.setattr(control, "current", lambda: "agent")
    refused("the script has started a process group of its own", nn.Linear(2, 2))


def test_a_second_training_in_one_process_is_refused_until_the_first_is_over(alone) -> None:
    def begun() -> Any:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return protect(model, optimizer, lambda step, share: torch.ones(1, 2), steps=1)

    first = begun()
    with pytest.raises(InputError, match="another protected training of this process is not over"):
        begun()
    for batch in first:
        with first.step():
            first.model(batch).sum().backward()
    second = begun()
    del second
    # Nobody can go on with it.
    begun()
