"""A small graph, and a model of two convolutions."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wirewise import graph

with warnings.catch_warnings():
    # PyG scripts functions at import, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data


class Net(nn.Module):
    """Two convolutions of the user's."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(8, 16), make(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


def whole_graph(directed: bool = False) -> Data:
    made = graph.block_model(
        graph.BlockModel(nodes=200, features=8, classes=4, mean_degree=5.0, directed=directed)
    )
    split = torch.from_numpy(made.split)
    return Data(
        x=torch.from_numpy(made.dense_x()),
        edge_index=torch.from_numpy(made.edge_index).long(),
        y=torch.from_numpy(made.y).long(),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
    )
