"""States of optimizers that a checkpoint would mix up are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.parallel import checkpoints


class Part(torch.Tensor):
    """A tensor with the mesh of one stage."""

    device_mesh = SimpleNamespace(size=lambda: 1)


def state_of(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def with_parts(state):
    for own in state["state"].values():
        own["momentum_buffer"] = own["momentum_buffer"].as_subclass(Part)
    return state


@pytest.mark.parametrize("ranks", [1, 2])
def test_numbers_of_parameters_of_one_of_several_stages_are_refused(monkeypatch, ranks):
    monkeypatch.setattr(checkpoints, "DTensor", Part)
    monkeypatch.setattr(checkpoints.dist, "get_world_size", lambda: ranks)
    state = with_parts(state_of([nn.Parameter(torch.ones(2))]))
    if ranks == 1:
        checkpoints._check_names(state)
        return
    with pytest.raises(InputError, match="get_optimizer_state_dict"):
        checkpoints._check_names(state)
    # By names, each parameter is one on all ranks.
    state["state"] = {f"layer.{key}": value for key, value in state["state"].items()}
    checkpoints._check_names(state)
