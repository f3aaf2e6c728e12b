"""Graphs without features, labels or masks, and splits given by numbers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GraphConv, SAGEConv

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.test_pyg_law import NODES, a_graph
from wirewise.errors import InputError


def split_of_numbers() -> dict[str, torch.Tensor]:
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(3))
    return {"train": order[: NODES // 2], "valid": order[NODES // 2 : NODES // 2 + 4], "test": order[-4:]}


@pytest.mark.parametrize("how", ["split", "train_mask", "train_idx"])
def test_numbers_of_nodes_reach_the_ranks_as_masks(how: str) -> None:
    split, data = split_of_numbers(), a_graph("directed")
    given: dict[str, Any] = {"split": split} if how == "split" else {}
    if how == "train_mask":
        data.train_mask, data.val_mask, data.test_mask = split.values()
    if how == "train_idx":
        data.train_mask = data.val_mask = data.test_mask = None
        data.train_idx, data.valid_idx, data.test_idx = split.values()

    def body(rank: int, group: Any, store: Any) -> torch.Tensor:
        own = job_of(data, rank, group, store, **given).data
        for name, nodes in zip(("train_mask", "val_mask", "test_mask"), split.values(), strict=True):
            assert torch.equal(own[name], torch.isin(own.n_id, nodes))
        if how == "train_idx":
            # A script indexes its output by them, which has a row for each own node.
            assert torch.equal(own.n_id[own.train_idx].sort().values, own.n_id[own.train_mask].sort().values)
        return own.n_id[own.train_mask]

    found = torch.cat(run_ranks_as_threads(2, body))
    assert torch.equal(found.sort().values, split["train"].sort().values)


def test_names_of_a_split_are_checked() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        with pytest.raises(
            InputError, match="names holdout; expected train" if rank == 0 else "rank 0 cannot use the graph"
        ):
            job_of(a_graph("directed"), rank, group, store, split={"holdout": torch.tensor([1])})

    run_ranks_as_threads(2, body)


class Embedded(nn.Module):
    """A model whose features are parameters of the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(NODES, 6)
        self.first, self.second = SAGEConv(6, 5), SAGEConv(5, 3)

    def forward(self, ids: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.rows(ids), edge_index).relu(), edge_index)


@pytest.mark.parametrize("missing", [("x",), ("y",), ("x", "y")])
def test_graphs_without_features_or_labels_train_as_on_one_process(missing: tuple[str, ...]) -> None:
    whole = a_graph("directed")
    target = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(4))
    whole.aim = target
    for name in missing:
        whole[name] = None
    if missing == ("x", "y"):
        whole.train_mask = whole.val_mask = whole.test_mask = None
        whole.num_nodes = NODES
    torch.manual_seed(0)
    model = Embedded()
    alone = copy.deepcopy(model)
    train = torch.ones(NODES, dtype=torch.bool) if "y" in missing and "x" in missing else whole.train_mask
    ids = torch.arange(NODES)
    F.mse_loss(alone(ids, whole.edge_index)[train], target[train]).backward()

    def body(rank: int, group: Any, store: Any) -> list[torch.Tensor]:
        job = job_of(whole, rank, group, store)
        own, mine = job.data, copy.deepcopy(model)
        assert all(getattr(own, name) is None for name in missing) and own.num_nodes == len(own.n_id)
        ranked = job.distribute(mine)
        out = ranked(own.n_id, own.edge_index)
        F.mse_loss(out[own.train_mask], own.aim[own.train_mask]).backward()
        if "y" in missing:
            with pytest.raises(InputError, match="the graph has no y"):
                job.accuracy(out.detach(), own.train_mask)
        return [p.grad for p in mine.parameters()]

    for gradients in run_ranks_as_threads(2, body):
        for got, wanted in zip(gradients, [p.grad for p in alone.parameters()], strict=True):
            assert torch.allclose(got, wanted, atol=1e-6)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = GraphConv(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(x, edge_index, weight).relu())


@pytest.mark.parametrize("scaled", [False, True])
def test_a_ring_with_weights_of_edges(scaled: bool) -> None:
    # There are as many edges as own nodes: rows of edges were taken for rows of nodes.
    whole = a_graph("directed")
    whole.edge_index = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    whole.edge_attr = None
    whole.x = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(5))
    whole.edge_weight = torch.rand(NODES, generator=torch.Generator().manual_seed(6)) + 0.5
    torch.manual_seed(0)
    model = Weighted()
    alone = copy.deepcopy(model)
    factor = 2 if scaled else 1
    expected = alone(whole.x, whole.edge_index, whole.edge_weight * factor)

    def body(rank: int, group: Any, store: Any) -> tuple[torch.Tensor, torch.Tensor]:
        job = job_of(whole, rank, group, store)
        own = job.data
        assert own.edge_index.shape[1] == own.num_nodes
        weight = own.edge_weight * factor if scaled else own.edge_weight
        return own.n_id, job.distribute(copy.deepcopy(model))(own.x, own.edge_index, weight).detach()

    for ids, rows in run_ranks_as_threads(2, body):
        assert torch.allclose(rows, expected[ids], atol=1e-6)


@pytest.mark.parametrize("kind", ["column", "floats"])
def test_accuracy_counts_labels_in_a_column_and_as_floats(kind: str) -> None:
    whole = a_graph("directed")
    classes = whole.y.clone()
    whole.y = whole.y[:, None] if kind == "column" else whole.y.double()[:, None]
    logits = torch.randn(NODES, int(classes.max()) + 1, generator=torch.Generator().manual_seed(7))
    wanted = (logits.argmax(1) == classes)[whole.test_mask].double().mean()

    def body(rank: int, group: Any, store: Any) -> float:
        job = job_of(whole, rank, group, store)
        return job.accuracy(logits[job.data.n_id], job.data.test_mask)

    assert run_ranks_as_threads(2, body) == pytest.approx([float(wanted)] * 2)
