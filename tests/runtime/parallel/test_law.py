"""The law of plans: a step on several ranks is that of one process, or it is refused by name; models as users write."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.runtime.parallel.compared import compare
from tests.runtime.parallel.zoo import LAYERS, MODELS
from wirewise.errors import PeerError, WirewiseError

SHAPES = {
    "4": {"mesh": (4,)},
    "2x2": {"mesh": (2, 2)},
    "4x1": {"mesh": (4, 1)},
    "4 in turns": {"mesh": (4,), "microbatches": 2},
    "2 stages": {"mesh": (2,), "stages": 2},
    "2 stages in turns": {"mesh": (2,), "stages": 2, "microbatches": 2},
}
"""Meshes of four ranks, stages and microbatches."""
SAMPLE = {"batch norm", "weight norm", "joined rows", "columns", "penalty of a mean", "spectral norm"}
SAMPLED = {"a branch", "names", "two towers", "seven rows", "scores that stay small", "adapters"}
"""Layers and models of the fast tier."""


def lawful(case, shape, **knobs):
    """Compare; a refusal has to say what it is about."""
    try:
        compare(*case(), **SHAPES[shape], **knobs)
    except PeerError:
        # A rank that fails while others wait for it is no refusal.
        raise
    except WirewiseError as error:
        said = str(error)
        assert "expected" in said or ";" in said, said


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in LAYERS]
)
def test_layers_are_right_or_refused(name):
    for shape in SHAPES:
        lawful(LAYERS[name], shape)


@pytest.mark.parametrize(
    "name", [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_models_are_right_or_refused(name):
    for shape in SHAPES:
        lawful(MODELS[name], shape)


@pytest.mark.parametrize(
    "name",
    [
        "names",  # a loss times a number
        "scores that stay small",
        "a penalty",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("language", "experts", "clicks", "translation")
        ),
    ],
)
def test_models_of_users_are_right_on_all_meshes(name):
    # Not refused on any of them: what ranks share is exchanged.
    for shape in ("4", "2x2", "4x1", "2 stages"):
        compare(*{**LAYERS, **MODELS}[name](), **SHAPES[shape])


class Loop(nn.Module):
    """A cell that takes its own output; parameters are taken again and again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out = nn.GRUCell(16, 24), nn.Linear(24, 10)

    def forward(self, x, target):
        h = x.new_zeros(len(x), 24)
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
        return nn.functional.cross_entropy(self.out(h), target)


@pytest.mark.parametrize("recompute", ["nothing", "blocks", "cheap operators"])
@pytest.mark.parametrize("rate", [1e7, 1e9, 1e11])
def test_parameters_of_a_loop_travel_once_and_chains_are_computed_again(recompute, rate):
    inputs = (torch.randn(8, 4, 16), torch.randint(10, (8,)))
    for mesh in ((4,), (2, 2)):
        compare(Loop(), inputs, mesh=mesh, recompute=recompute, rate=rate)
