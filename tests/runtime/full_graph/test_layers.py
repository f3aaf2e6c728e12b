"""X1 to X3, X7: many ranks compute what one process computes, and that is what dense algebra says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.runtime.full_graph.training import CONVOLUTIONS, Run, small_graph, split, train, worst
from wirewise import graph, rng
from wirewise.runtime import full_graph as fg


def dense_epoch(
    data: graph.GraphData, convolution: str, hidden: int, layers: int
) -> tuple[float, Tensor, list[Tensor]]:
    """Loss, evaluation logits and gradients of the first epoch by dense float64 algebra, without any part."""
    n = data.num_nodes
    source, target = data.in_edges.indices, np.repeat(np.arange(n), np.diff(data.in_edges.indptr))
    a = torch.zeros(n, n, dtype=torch.float64)
    a[torch.from_numpy(target.astype(np.int64)), torch.from_numpy(source.astype(np.int64))] = 1.0
    if convolution == "gcn":
        d_in, d_out = a.sum(1) + 1, a.sum(0) + 1
        a = (a + torch.eye(n)) / torch.sqrt(d_in[:, None] * d_out[None, :])
    else:
        a = a / a.sum(1, keepdim=True).clamp_min(1)
    torch.manual_seed(0)
    net = fg.FullGraphNet(
        data.num_features, hidden, data.num_classes, layers=layers, convolution=convolution
    ).double()

    def forward(training: bool) -> Tensor:
        h = torch.from_numpy(data.dense_x()).double()
        for i, conv in enumerate(net.convolutions):
            z = (a @ h) @ conv.weight.t() + conv.bias
            if conv.weight_self is not None:
                z = z + h @ conv.weight_self.t()
            if i == layers - 1:
                return z
            h = F.relu(F.layer_norm(z, (hidden,), conv.gain, conv.shift))
            if training:
                key = rng.stream_key(3, 0, 0xD0, i)
                keep = rng.uniform16(key, np.arange(n), hidden) >= round(0.5 * 65536)
                h = h * torch.from_numpy(keep) / 0.5
        raise AssertionError

    train_rows = torch.from_numpy(data.split == 0)
    logits, y = forward(True)[train_rows], torch.from_numpy(data.y)[train_rows]
    loss = (
        F.binary_cross_entropy_with_logits(logits, y.double())
        if data.multilabel
        else F.cross_entropy(logits, y.long())
    )
    loss.backward()
    return float(loss.detach()), forward(False).detach(), [p.grad for p in net.parameters()]


def first_epoch(parts: list[graph.Part], convolution: str, mode: fg.ExchangeMode | str = "fp32") -> Run:
    """One epoch without a weight update that matters: the learning rate is tiny."""
    return train(parts, mode, epochs=1, convolution=convolution, dtype=torch.float64, learning_rate=1e-30)


@pytest.mark.sweep
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_distributed_equals_dense_algebra(convolution: str, directed: bool, ranks: int) -> None:
    data = small_graph(directed=directed)
    loss, logits, gradients = dense_epoch(data, convolution, 16, 3)
    run = first_epoch(split(data, ranks), convolution)
    assert run.losses[0] == pytest.approx(loss, rel=1e-10)
    assert worst([run.logits], [logits]) <= 1e-10
    assert worst(run.gradients, gradients) <= 1e-10


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_multilabel_graph(convolution: str) -> None:
    data = small_graph()
    labels = (np.random.default_rng(0).random((data.num_nodes, 6)) < 0.3).astype(np.float32)
    data = graph.GraphData(
        edge_index=data.edge_index,
        x=data.x,
        y=labels,
        split=data.split,
        num_classes=6,
        directed=False,
        name="multi",
    )
    loss, logits, gradients = dense_epoch(data, convolution, 16, 3)
    run = first_epoch(split(data, 3), convolution)
    assert run.losses[0] == pytest.approx(loss, rel=1e-10)
    assert worst([run.logits], [logits]) <= 1e-10
    assert worst(run.gradients, gradients) <= 1e-10


def odd_parts() -> tuple[graph.GraphData, np.ndarray]:
    """Rank 0 without central nodes, rank 1 without train nodes, ranks 1 and 3 without common edges, lonely nodes."""
    data = small_graph(nodes=120, mean_degree=3.0)
    owners = np.arange(120) % 3
    owners[100:] = 3
    keep = ~((owners[data.edge_index[0]] == 1) & (owners[data.edge_index[1]] == 3))
    keep &= ~((owners[data.edge_index[0]] == 3) & (owners[data.edge_index[1]] == 1))
    keep &= ~np.isin(data.edge_index, [7, 8, 110]).any(axis=0)
    labels = data.split.copy()
    labels[(owners == 1) & (labels == 0)] = 2
    made = graph.GraphData(
        edge_index=data.edge_index[:, keep],
        x=data.x,
        y=data.y,
        split=labels,
        num_classes=data.num_classes,
        directed=False,
        name="odd",
    )
    return made, owners


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
@pytest.mark.parametrize("mode", ["fp32", "adaqp-p"])
def test_odd_parts(convolution: str, mode: str) -> None:
    data, owners = odd_parts()
    parts = list(graph.split_graph(data, owners, num_parts=4))
    loss, logits, gradients = dense_epoch(data, convolution, 16, 3)
    run = first_epoch(parts, convolution, mode)
    assert run.losses[0] == pytest.approx(loss, rel=1e-10)
    assert worst([run.logits], [logits]) <= 1e-10
    assert worst(run.gradients, gradients) <= 1e-10


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_twenty_steps_in_float32(convolution: str) -> None:
    data = small_graph()
    one = train(split(data, 1), "fp32", epochs=20, convolution=convolution)
    many = train(split(data, 4), "fp32", epochs=20, convolution=convolution)
    assert many.losses[0] == pytest.approx(one.losses[0], rel=1e-6)
    assert float((many.logits - one.logits).abs().max() / one.logits.abs().max()) <= 1e-4


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_float32_gradients(convolution: str) -> None:
    data = small_graph()
    options = {"epochs": 1, "convolution": convolution, "learning_rate": 1e-30}
    one, many = (train(split(data, ranks), "fp32", **options) for ranks in (1, 4))
    assert worst(many.gradients, one.gradients) <= 2e-5
