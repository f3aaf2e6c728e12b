"""Graph at the time of a task, and the inputs of a two-layer GCN on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.graph import SparseRows
from wirewise.graph.ops import Csr
from wirewise.graph.rehearsal import GrowingGraph

__all__ = ["Block", "CurrentGraph"]


class Block(NamedTuple):
    """Inputs of the rows of some nodes: their neighbours' aggregated features. n nodes, m neighbours."""

    adjacency: Csr
    """Normalised adjacency of the nodes and their neighbours, [n, m]."""
    features: Csr | Tensor
    """Features of the neighbours, [m, F], already summed over their own neighbours."""


class CurrentGraph:
    """Normalised adjacency (D^-1/2 (A + I) D^-1/2) and aggregated features of the graph at a task.

    Args:
        growing_graph: The graph and its tasks.
        task: Index of the task to learn.
    """

    def __init__(self, growing_graph: GrowingGraph, task: int) -> None:
        edges = growing_graph.edges(task)
        nodes = growing_graph.data.num_nodes
        values = np.ones(len(edges.indices), np.float32) if edges.weight is None else edges.weight
        with_self = sp.csr_matrix((values, edges.indices, edges.indptr), shape=(nodes, nodes))
        with_self = with_self + sp.identity(nodes, np.float32, format="csr")
        scale = sp.diags_array((1 / np.sqrt(np.asarray(with_self.sum(axis=1)).ravel())).astype(np.float32))
        self.task, self.edges = task, edges
        self._adjacency = sp.csr_matrix(scale @ with_self @ scale)
        x = growing_graph.data.x
        self._features = self._adjacency @ (
            x.to_scipy() if isinstance(x, SparseRows) else np.asarray(x, np.float32)
        )
        self._kept: dict[str, Any] = {}

    def block(self, nodes: NDArray[np.int64]) -> Block:
        """Inputs of the rows of `nodes`, int [n]."""
        rows = self._adjacency[nodes]
        near, column = np.unique(rows.indices, return_inverse=True)
        adjacency = sp.csr_matrix((rows.data, column.astype(np.int32), rows.indptr), (len(nodes), len(near)))
        features = self._features[near]
        dense = isinstance(features, np.ndarray)
        return Block(
            Csr.from_scipy(adjacency), torch.from_numpy(features) if dense else Csr.from_scipy(features)
        )

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Cached result of `make` for this graph, shared by methods that learn alternately."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]
