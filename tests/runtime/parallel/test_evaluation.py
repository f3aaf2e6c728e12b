"""Parallel models in evaluation mode against the plain model: outputs of batches of any size, between steps."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.harness.processes import run_ranks_as_processes
from wirewise.cost.links import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import parallelize
from wirewise.topology import lab_hosts


class Block(nn.Module):
    """A layer whose norm has other statistics in evaluation mode."""

    def __init__(self, dropout):
        super().__init__()
        self.layer, self.norm, self.dropout = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.norm(self.layer(x))))


class Classifier(nn.Module):
    """Scores of rows; a parameter of the last block is taken outside of it."""

    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.scale = nn.Parameter(torch.full((16,), 1.5))
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x * self.scale + self.blocks[1].norm.weight)


def loss_of(model, inputs):
    return functional.cross_entropy(model(inputs[0]), inputs[1])


def made(dropout=0.0):
    torch.manual_seed(0)
    return Classifier(dropout), (torch.randn(8, 8), torch.randint(4, (8,)))


def planned(dropout, **shape):
    """A plan for links so fast that splitting pays."""
    graph = capture_step(*made(dropout), loss_of).graph
    nodes = tuple(msgspec.structs.replace(node, time_s=1e-4 * node.computes) for node in graph.nodes)
    links = Links.of(lab_hosts(["10gbit"] * 2))
    return make_plan(ParallelProblem(graph=msgspec.structs.replace(graph, nodes=nodes), links=links), **shape)


def evaluated(model, step, rows=5):
    """Outputs before and after two steps of training, each behind it in training mode again."""
    found = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-2, 2, rows * 8).reshape(rows, 8)
    for _ in range(3):
        model.eval()
        found.append(model(x))
        model.train()
        optimizer.zero_grad()
        step(model).backward()
        optimizer.step()
    return found


def one_rank(rank, settings):
    found = []
    for dropout, plan in settings:
        model, inputs = made(dropout)
        parallel = parallelize(model, plan, capture_step(model, inputs, loss_of), timeout_s=30.0)
        torch.manual_seed(3)
        found.append(evaluated(parallel, lambda model, inputs=inputs: model(*inputs)))
        assert not any(output.requires_grad for output in found[-1])
    return found


@pytest.mark.dist
@pytest.mark.slow
def test_outputs_in_evaluation_mode_are_those_of_the_plain_model():
    settings = [
        (0.5, planned(0.5, stages=1, mesh=(2,))),
        (0.0, planned(0.0, stages=2, mesh=(1,), microbatches=1)),
    ]
    assert any(word.startswith("S") for words in settings[0][1].placements for word in words)
    assert set(settings[1][1].stage_of) == {0, 1}
    wanted = []
    for dropout, _ in settings:
        model, inputs = made(dropout)
        torch.manual_seed(3)
        wanted.append(evaluated(model.train(), lambda model, inputs=inputs: loss_of(model, inputs)))
    for found in run_ranks_as_processes(2, one_rank, settings):
        for own, plain in zip(found, wanted, strict=True):
            for one, other in zip(own, plain, strict=True):
                torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-5)
