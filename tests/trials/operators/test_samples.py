"""Regions of a model's own step are compiled, measured and learned."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from wirewise.errors import InputError
from wirewise.profile.regions import PRIME
from wirewise.trials.operators.samples import collect_step


def loss(model, batch):
    x, y = batch
    return functional.mse_loss(model(x), y)


def batch_of(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(samples, 16), torch.rand(samples, 1)


def net(width: int = 24) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 1))


_MEASURED = """
import torch
from msgspec.structs import replace
from tests.trials.operators.test_samples import PRIME, batch_of, collect_step, loss, net
from wirewise.planners.fusion.disco.estimator import load_shipped
from wirewise.trials.operators.learning import fit_estimator, to_region_graph
torch._inductor.config.compile_threads = 1
regions = list(collect_step(net(), loss, batch_of(PRIME), draws=8, sizes=2))
samples = [one for region in regions for one in region]
assert 2 <= len(regions) <= 8
assert all(one.source == "Sequential" and len(one.operators) >= 2 and one.seconds > 0 for one in samples)
assert all(a.size < b.size for a, b in (region for region in regions if len(region) == 2))
# Each is drawn once.
assert len({(region[0].details, region[0].operators) for region in regions}) == len(regions)
# Three times what was measured, so that the shipped weights are off for certain.
samples = [replace(one, seconds=3 * one.seconds) for one in samples]
learned = fit_estimator(samples, epochs=40, batch=4, dropout=0.0, start=load_shipped())
graphs = [to_region_graph(one) for one in samples]
missed = [
    sum(abs(who.seconds(graph) / one.seconds - 1) for graph, one in zip(graphs, samples))
    for who in (learned, load_shipped())
]
assert missed[0] < missed[1] / 2, missed
print("measured and learned")
"""


@pytest.mark.slow
@pytest.mark.dist
def test_regions_of_a_step_are_measured_and_learned():
    # In a process of its own: Inductor warns when it is loaded, and what measures takes one thread.
    found = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, timeout=250)
    assert found.stdout.strip() == "measured and learned", found.stderr


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (net(), batch_of(32), r"got a batch of \[32, 16\], \[32, 1\]; expected 61 samples"),
        (net(2 * PRIME), batch_of(PRIME), "a width of 0.weight is a multiple of 61"),
    ],
)
def test_what_grows_with_the_batch_must_be_told(model, batch, message):
    with pytest.raises(InputError, match=message):
        next(collect_step(model, loss, batch))
