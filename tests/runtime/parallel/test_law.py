"""The law of plans: a step on several ranks is that of one process, or it is refused by name; models as users write."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.tiers import EXHAUSTIVE
from tests.runtime.parallel.compared import compare
from tests.runtime.parallel.public_models import TRANSFORMERS, gpt2
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
TWO = [("2x2", "4 in turns"), ("4", "2 stages in turns"), ("4x1", "2 stages")]
SAMPLE = {"batch norm", "weight norm", "joined rows", "columns", "penalty of a mean", "spectral norm"}
SAMPLED = {"a branch", "a penalty", "names", "two towers", "seven rows", "scores that stay small", "adapters"}
"""Layers and models of the fast tier."""


RIGHT = {
    "names",  # a loss times a number
    "scores that stay small",
    "a penalty",
    "language",
    "experts",
    "clicks",
    "translation",
}
"""Models that are refused on no mesh and in no stages: what ranks share is exchanged."""


def lawful(name, case, shape):
    """Compare; a refusal has to say what it is about."""
    try:
        compare(*case(), **SHAPES[shape])
    except PeerError:
        # A rank that fails while others wait for it is no refusal.
        raise
    except WirewiseError as error:
        said = str(error)
        assert "expected" in said or ";" in said, said
        assert name not in RIGHT or "turns" in shape, said


def shapes_of(name):
    """All shapes for what is sampled, and two of them for others."""
    if EXHAUSTIVE or name in SAMPLE | SAMPLED:
        return list(SHAPES)
    return TWO[[*LAYERS, *MODELS].index(name) % 3]


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in LAYERS]
)
@pytest.mark.sample(30)
def test_layers_are_right_or_refused(name):
    for shape in shapes_of(name):
        lawful(name, LAYERS[name], shape)


@pytest.mark.parametrize(
    "name", [name if name in SAMPLED else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
@pytest.mark.sample(5)
def test_models_are_right_or_refused(name):
    for shape in shapes_of(name):
        lawful(name, MODELS[name], shape)


# Each model in a shape and each shape with a model: all 42 take a quarter of an hour.
PAIRED = [
    (name, shape)
    for number, name in enumerate(TRANSFORMERS)
    for place, shape in enumerate(SHAPES)
    if (EXHAUSTIVE or (place - number) % 6 == 0)
    and (name, shape) != ("mixtral", "2x2")  # its search needs more than 20 s
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), PAIRED)
@pytest.mark.sample(4)
def test_models_of_transformers_are_right_on_all_meshes(name, shape):
    compare(*TRANSFORMERS[name](), **SHAPES[shape])


def test_a_language_model_of_transformers_is_right_in_turns():
    compare(*gpt2(n_layer=1), **SHAPES["4 in turns"])


@pytest.mark.parametrize(
    "name",
    [
        "prelu",
        "log sigmoid",
        "weight norm",
        "a column written",
        "bags, summed",
        "pooled, channels last",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "bags, averaged",
                "distances",
                "distances to rows",
                "spectrum",
                "filtered spectrum",
                "inverse",
                "solved",
                "factors",
                "orthogonal factors",
                "activations",
                "diagonals",
                "sliding",
                "put",
            )
        ),
    ],
)
@pytest.mark.sample(6)
def test_layers_that_few_networks_have_are_right_in_turns(name):
    for shape in ("4", "4 in turns"):
        compare(*LAYERS[name](), **SHAPES[shape])


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


@pytest.mark.sweep(keep=1)
@pytest.mark.sample(2)
@pytest.mark.parametrize("recompute", ["nothing", "blocks", "cheap operators"])
@pytest.mark.parametrize("rate", [1e7, 1e9, 1e11])
def test_parameters_of_a_loop_travel_once_and_chains_are_computed_again(recompute, rate):
    inputs = (torch.randn(8, 4, 16), torch.randint(10, (8,)))
    for mesh in ((4,), (2, 2)):
        compare(Loop(), inputs, mesh=mesh, recompute=recompute, rate=rate)
