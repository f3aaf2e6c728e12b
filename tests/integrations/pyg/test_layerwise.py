"""Outputs of all nodes, layer after layer: those of the whole graph, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg_models import CLASSES, FEATURES, g
from tests.integrations.test_pyg_law import LIMIT, a_graph, distance
from wirewise.errors import InputError
from wirewise.integrations import pyg

MODELS = {
    "GraphSAGE": lambda: GraphSAGE(FEATURES, 16, 3, CLASSES, norm="batch", dropout=0.5),
    "GraphSAGE jk": lambda: GraphSAGE(FEATURES, 16, 2, CLASSES, jk="last"),
    "GCN": lambda: GCN(FEATURES, 16, 3, CLASSES),
    "GAT": lambda: GAT(FEATURES, 16, 2, CLASSES, v2=True),
    "GIN": lambda: GIN(FEATURES, 16, 2, CLASSES),
}


def trained_model(make: Any, data: Data) -> nn.Module:
    """A model whose norms have seen the data."""
    torch.manual_seed(2)
    model: nn.Module = make()
    model.train()(data.x, data.edge_index)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_whole_graph(name: str) -> None:
    data = a_graph("loops")
    model = trained_model(MODELS[name], data)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
    found = pyg.inference(model, data, batch_size=17)
    assert not found.requires_grad
    assert distance([found], [expected]) < LIMIT


def test_layers_of_the_users_own_take_the_hops_that_they_read() -> None:
    data = a_graph("directed")
    torch.manual_seed(1)
    first, second, head = g.TAGConv(FEATURES, 16, K=3), g.SAGEConv(16, 16), nn.Linear(16, CLASSES)

    def last(x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return head(F.relu(second(x, edges)))

    with torch.no_grad():
        expected = last(F.relu(first(data.x, data.edge_index)), data.edge_index)
    found = pyg.inference([lambda x, edges: F.relu(first(x, edges)), last], data, batch_size=30)
    assert distance([found], [expected]) < LIMIT


def test_ranks_share_the_nodes_and_have_all_outputs() -> None:
    data = a_graph("loops")
    model = trained_model(MODELS["GCN"], data)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)

    def body(rank: int, group: Any, store: Any) -> torch.Tensor:
        return pyg.inference(model, data, batch_size=9, group=group)

    for found in run_ranks_as_threads(2, body):
        assert distance([found], [expected]) < LIMIT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GraphSAGE(FEATURES, 8, 2, CLASSES).train(), "GraphSAGE is in training mode"),
        (lambda: GraphSAGE(FEATURES, 8, 2, CLASSES, jk="cat").eval(), "jk='cat'"),
        (
            lambda: GraphSAGE(FEATURES, 8, 2, norm="graph_norm").eval(),
            "rows of layer 0 depend on nodes beyond 4 hops",
        ),
        (lambda: [lambda x, edges: x - x.mean(0)], "rows of layer 0 depend on"),
        (lambda: [lambda x, edges: F.dropout(x, 0.5)], "or on chance"),
        (lambda: nn.Linear(FEATURES, 2).eval(), "Linear has no inference_per_layer"),
        (list, "there are no layers"),
    ],
)
def test_models_that_layers_alone_do_not_compute_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pyg.inference(make(), a_graph("isolated"))


def test_data_without_features_are_refused() -> None:
    data = a_graph("directed")
    model, edge_index = GraphSAGE(FEATURES, 8, 2).eval(), data.edge_index
    with pytest.raises(InputError, match="has no x"):
        pyg.inference(model, Data(edge_index=edge_index, num_nodes=100))
