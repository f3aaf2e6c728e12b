"""Captured steps: a sound graph of operators, all gradients, categories, and what cannot be captured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.runtime.data_parallel.captured import BUILDS, calls, example, loss_of
from tests.runtime.data_parallel.examples import made
from wirewise.errors import InputError
from wirewise.runtime.data_parallel.capture import capture


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", BUILDS)
def test_the_graph_has_every_operator_and_every_gradient(name):
    model = made(BUILDS[name])
    found = capture(model, loss_of, example(name))
    graph = found.operators
    assert [one.kind for one in graph.operators] == [
        kind for kind in calls(found.module) if "getitem" not in kind
    ]
    size = {one.gradient: one.output_bytes for one in graph.operators if one.gradient}
    assert size == {name: p.nbytes for name, p in model.named_parameters()}
    matmuls = [one for one in graph.operators if one.category == "matmul"]
    assert matmuls
    assert all(one.flops > 0 for one in matmuls)


def test_frozen_parameters_get_no_gradient_and_nothing_changes():
    model = made(BUILDS["cnn"])
    model[0].weight.requires_grad_(False)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = capture(model, loss_of, example("cnn"))
    assert "0.weight" in found.parameters
    assert "0.weight" not in {one.gradient for one in found.operators.operators}
    assert set(found.changed) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(model.state_dict()[name], t) for name, t in before.items())


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x[:, :3]


def test_what_cannot_be_captured_is_named():
    with pytest.raises(InputError, match=r"cannot be captured: DataDependent"):
        capture(made(lambda: Deciding(4, 3)), loss_of, example("mlp"))
    with pytest.raises(InputError, match="freeze unused parameters"):
        capture(made(BUILDS["mlp"]), lambda model, batch: model[0](batch[0]).sum(), example("mlp"))
    with pytest.raises(InputError, match="a batch with str; expected tensors only"):
        capture(made(BUILDS["mlp"]), loss_of, ("text", torch.ones(1)))
