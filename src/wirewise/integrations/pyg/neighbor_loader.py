"""Batches of sampled neighbourhoods of nodes, as those of PyG's NeighborLoader, on one rank or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from wirewise.errors import InputError
from wirewise.graph.foreign import to_numpy
from wirewise.integrations.pyg.sampled_loader import SampledLoader, node_count

__all__ = ["NeighborLoader"]


class NeighborLoader(SampledLoader):
    """Loader of sampled neighbourhoods of nodes, with the arguments and batches of `torch_geometric.loader`'s.

        for batch in NeighborLoader(data, num_neighbors=[15, 10], batch_size=1024, input_nodes=data.train_mask):
            out = model(batch.x, batch.edge_index)[: batch.batch_size]

    Each iteration is an epoch with samples of its own. Needs neither pyg-lib nor torch-sparse.

    With a process group, make the loader on all ranks with the same arguments. Each holds the whole graph. They share
    `input_nodes`: batch b of all ranks is the b-th `batch_size * ranks` of them in the common order, in pieces that
    differ by at most one node; the last batch has the remainder. All ranks have as many batches, none of them empty.
    `cross_entropy(out, y, reduction="sum") * batch.scale`, averaged over ranks as DistributedDataParallel does, is the
    mean over the seeds of all ranks.

    Batches are `Data` with the seeds first: rows of all attributes of nodes and edges, `edge_index` in local numbers,
    `n_id`, `e_id`, `input_id`, `batch_size`, `num_sampled_nodes` and `num_sampled_edges` (a number for each hop), and
    `scale`.

    Args:
        data: Graph with `edge_index`; self loops and repeated edges are sampled like all others.
        num_neighbors: In-neighbours per node in each hop, the seeds' own first; -1 for all.
        input_nodes: Seeds: a mask of all nodes, or ids without duplicates. Defaults to all nodes.
        options: Options of `LoaderOptions`: batch_size, shuffle, drop_last, transform, num_workers, prefetch_factor,
            pin_memory, seed, group, distributed, timeout_s. PyG's other arguments are refused unless at their default.

    Raises:
        InputError: An argument is not supported or out of range, or ranks were given different ones.
        GraphError: The graph has several types of nodes, or edges of nodes that do not exist.
    """

    _seeds_name = "input_nodes"

    def __init__(
        self, data: Data, num_neighbors: Sequence[int], input_nodes: Any = None, **options: Any
    ) -> None:
        self.input_nodes, self._input_id = _input_nodes(input_nodes, node_count(data))
        super().__init__(data, num_neighbors, self.input_nodes, options)

    def _batch(self, numbers: NDArray[np.int64], epoch: int, draw: int) -> Data:
        batch = self._sampled(self.input_nodes[numbers], epoch, draw)
        batch.input_id = torch.from_numpy(numbers if self._input_id is None else self._input_id[numbers])
        batch.batch_size = len(numbers)
        return batch


def _input_nodes(given: Any, nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Seeds, and their `input_id` where it is not their number: PyG has the nodes themselves for a mask."""
    if given is None:
        return np.arange(nodes), None
    values = to_numpy(given)
    if values.dtype == bool and values.shape == (nodes,):
        values = np.flatnonzero(values)
        found, input_id = values, values
    elif values.dtype.kind in "iu" and values.ndim == 1:
        found, input_id = values.astype(np.int64), None
    else:
        raise InputError(
            f"input_nodes is {values.dtype} {list(values.shape)}; expected a mask of {nodes} nodes, or node ids, "
            "integers of shape [n]"
        )
    if not len(found):
        raise InputError("input_nodes holds no node; expected at least one")
    wrong = found[(found < 0) | (found >= nodes)]
    if len(wrong):
        raise InputError(f"input_nodes holds {wrong[0]}; expected ids from 0 to {nodes - 1}")
    unique, counts = np.unique(found, return_counts=True)
    if len(unique) < len(found):
        raise InputError(
            f"input_nodes holds node {unique[counts > 1][0]} more than once; expected each once: weigh nodes in the "
            "loss"
        )
    return found, input_id
