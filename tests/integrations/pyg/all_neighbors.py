"""PyG's own loaders over a sampler that takes all in-neighbours, edge by edge in Python: the oracle of batches.

PyG's compiled samplers are packages of their own, which are not among the requirements of tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample


class AllNeighbors(BaseSampler):
    """All in-neighbours of each hop."""

    def __init__(self, data: Data, hops: int) -> None:
        self.hops, self.nodes = hops, int(data.num_nodes)
        self.incoming: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for number, (source, target) in enumerate(data.edge_index.t().tolist()):
            self.incoming[target].append((source, number))
        for edges in self.incoming:
            edges.sort()

    @property
    def edge_permutation(self) -> None:
        return None

    def sample_from_nodes(self, index: Any, **_: Any) -> SamplerOutput:
        out = self._sample(index.node)
        out.metadata = (index.input_id, index.time)
        return out

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> SamplerOutput:
        return edge_sample(index, lambda seed, _: self._sample(seed), self.nodes, False, None, neg_sampling)

    def _sample(self, seeds: Tensor) -> SamplerOutput:
        nodes, edges, begin = seeds.tolist(), [], 0
        local = {node: place for place, node in enumerate(nodes)}
        sizes = [len(nodes)], []
        for _ in range(self.hops):
            end, before = len(nodes), len(edges)
            for target in range(begin, end):
                for source, number in self.incoming[nodes[target]]:
                    if source not in local:
                        local[source] = len(nodes)
                        nodes.append(source)
                    edges.append((local[source], target, number))
            begin = end
            sizes[0].append(len(nodes) - end)
            sizes[1].append(len(edges) - before)
        row, col, edge = torch.tensor(edges, dtype=torch.long).view(-1, 3).t().contiguous()
        return SamplerOutput(torch.tensor(nodes), row, col, edge, None, *sizes)


def node_batches(data: Data, hops: int, **options: Any) -> list[Data]:
    """Batches of PyG's loader of nodes."""
    return list(NodeLoader(data, AllNeighbors(data, hops), **options))


def link_batches(data: Data, hops: int, **options: Any) -> list[Data]:
    """Batches of PyG's loader of links."""
    return list(LinkLoader(data, AllNeighbors(data, hops), **options))


def assert_equal_batches(ours: Data, theirs: Data) -> None:
    """Same attributes, types and values; `scale` is ours alone."""
    assert set(ours.keys()) - set(theirs.keys()) == {"scale"}
    assert set(theirs.keys()) <= set(ours.keys())
    for name, value in theirs.to_dict().items():
        if isinstance(value, Tensor):
            assert ours[name].dtype == value.dtype, name
            assert torch.equal(ours[name], value), name
        else:
            assert ours[name] == value, name
