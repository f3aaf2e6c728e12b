"""Batches of sampled neighbourhoods of links, as those of PyG's LinkNeighborLoader, on one rank or many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from wirewise.errors import InputError
from wirewise.graph.foreign import to_numpy
from wirewise.integrations.pyg.sampled_loader import SampledLoader, node_count
from wirewise.rng import stream_key

__all__ = ["LinkNeighborLoader"]

_NEGATIVES = 0x4E454721
"""Word of the stream of negative links; the words of hops are small."""


class LinkNeighborLoader(SampledLoader):
    """Loader of sampled neighbourhoods of links, with the arguments and batches of `torch_geometric.loader`'s.

    Batches are those of `NeighborLoader`, without `batch_size`: the seeds are the ends of the links. They have
    `edge_label_index`, the links in local numbers, [2, links], and `edge_label`. Links are shared by ranks as nodes are
    there; `batch.scale` counts negative links too.

    With `neg_sampling_ratio`, negative links follow the positive ones of each batch: both ends are sampled uniformly
    from all nodes, so that a few may be edges of the graph. Labels are then 1 and 0; classes from 0 become those from
    1, and 0 marks negative links.

    Args:
        data: Graph with `edge_index`. Its edges are sampled whether or not they are links of the batch.
        num_neighbors: In-neighbours per node in each hop, the ends' own first; -1 for all.
        edge_label_index: Links to predict, [2, links]. Defaults to all edges.
        edge_label: Label of each link, [links, ...]. Defaults to 1 if there are negative links, and to none otherwise.
        neg_sampling: "binary", or a `NegativeSampling` or dict of this mode and an amount, without weights.
        neg_sampling_ratio: Negative links for each positive one; the same as an amount of `neg_sampling`.
        options: Options of `NeighborLoader`, by their names there.

    Raises:
        InputError: An argument is not supported or out of range, or ranks were given different ones.
        GraphError: The graph has several types of nodes, or edges of nodes that do not exist.
    """

    _seeds_name = "edge_label_index"

    def __init__(
        self,
        data: Data,
        num_neighbors: Sequence[int],
        edge_label_index: Any = None,
        edge_label: Any = None,
        *,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        **options: Any,
    ) -> None:
        nodes = node_count(data)
        self.edge_label_index = _links(
            data.edge_index if edge_label_index is None else edge_label_index, nodes
        )
        self.negatives_per_link = _amount(neg_sampling, neg_sampling_ratio)
        super().__init__(data, num_neighbors, self.edge_label_index, options)
        self.edge_label = self._labels(edge_label)

    def _identity(self, seeds: NDArray[np.int64]) -> dict[str, Any]:
        return {**super()._identity(seeds), "negative links a link": self.negatives_per_link}

    def _labels(self, given: Any) -> Tensor | None:
        links = self.edge_label_index.shape[1]
        if given is None:
            return torch.ones(links) if self.negatives_per_link else None
        labels = torch.as_tensor(given)
        if labels.dim() < 1 or len(labels) != links:
            raise InputError(
                f"edge_label has the shape {list(labels.shape)}; expected a label for each of {links} links"
            )
        return labels + 1 if self.negatives_per_link and bool(labels.min() == 0) else labels

    def _negatives(self, links: int) -> int:
        return math.ceil(links * self.negatives_per_link)

    def _examples(self, seeds: int) -> int:
        return seeds + self._negatives(seeds)

    def _batch(self, numbers: NDArray[np.int64], epoch: int, draw: int) -> Data:
        links = self.edge_label_index[:, numbers]
        if count := self._negatives(len(numbers)):
            rng = np.random.default_rng(stream_key(self.options.seed, epoch, draw, _NEGATIVES))
            links = np.concatenate([links, rng.integers(self.sampler.num_nodes, size=(2, count))], axis=1)
        nodes, local = np.unique(links.ravel(), return_inverse=True)
        batch = self._sampled(nodes, epoch, draw)
        batch.input_id = torch.from_numpy(numbers)
        batch.edge_label_index = torch.from_numpy(local.reshape(links.shape))
        # A label of the data is none of these links, and leaves the batch where they have none.
        batch.edge_label = self._labels_of(torch.from_numpy(numbers), count)
        return batch

    def _labels_of(self, numbers: Tensor, negatives: int) -> Tensor | None:
        if self.edge_label is None:
            return None
        labels = self.edge_label[numbers.to(self.edge_label.device)]
        return torch.cat([labels, labels.new_zeros((negatives, *labels.shape[1:]))]) if negatives else labels


def _links(given: Any, nodes: int) -> NDArray[np.int64]:
    links = to_numpy(given)
    if links.ndim != 2 or len(links) != 2 or links.dtype.kind not in "iu":
        raise InputError(
            f"edge_label_index is {links.dtype} {list(links.shape)}; expected sources and targets, integers [2, links]"
        )
    if not links.shape[1]:
        raise InputError("edge_label_index holds no link; expected at least one")
    wrong = links[(links < 0) | (links >= nodes)]
    if len(wrong):
        raise InputError(f"edge_label_index holds node {wrong[0]}; expected ids from 0 to {nodes - 1}")
    return links.astype(np.int64)


def _amount(neg_sampling: Any, ratio: float | None) -> float:
    """Negative links a link."""
    if ratio:
        if neg_sampling is not None or ratio < 0 or not math.isfinite(ratio):
            raise InputError(
                f"got neg_sampling_ratio {ratio} and neg_sampling {neg_sampling!r}; expected one of them, the ratio "
                "above 0"
            )
        return ratio
    if neg_sampling is None:
        return 0.0
    sampling = NegativeSampling.cast(neg_sampling)
    if not sampling.is_binary() or sampling.src_weight is not None or sampling.dst_weight is not None:
        raise InputError(
            f"neg_sampling is {sampling}; expected the mode 'binary' without weights: negative links have two ends "
            "that are drawn uniformly from all nodes"
        )
    return float(sampling.amount)
