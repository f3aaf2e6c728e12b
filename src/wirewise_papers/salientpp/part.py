"""Graph part of one machine in mini-batch training, and its loaders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from wirewise import plans
from wirewise.graph import GraphData, SparseRows, read_mapped
from wirewise.graph.mapped import watch
from wirewise.graph.sampling import NeighborSampler
from wirewise.plans import CachePlan
from wirewise.runtime.mini_batch import (
    BatchLoader,
    DeviceStore,
    Fetcher,
    PartitionedSampler,
    RowStore,
    own_edges,
)
from wirewise.runtime.transport import Transport
from wirewise_papers.salientpp.experiment import MiniBatchJob, Mode

__all__ = ["MachinePart"]


class MachinePart:
    """Rows and edges of a machine, read from the prepared files.

    Args:
        job: Settings of the run.
        folder: Folder with the graph, the nodes and the cache plan.
        rank: Index of this rank.
        ids: Transport for row ids.
        sampling: Transport for sampled neighbours if the topology is partitioned. Nothing else may use these groups.
    """

    def __init__(
        self, job: MiniBatchJob, folder: Path, rank: int, ids: Transport, sampling: Transport
    ) -> None:
        self.job, self.rank, self._ids, self._sampling = job, rank, ids, sampling
        # All ranks of a host share the pages that they touch.
        graph = read_mapped(folder / "graph", writeable=True)
        self.check_files = watch(folder / "graph")
        with np.load(folder / "nodes.npz") as nodes:
            self.offsets, self.train, self.test = nodes["offsets"], nodes["train"], nodes["test"]
        plan = plans.load(folder / "plan.json")
        assert isinstance(plan, CachePlan)
        self.plan = plan
        self.num_nodes, self.num_features, self.num_classes = (
            graph.num_nodes,
            graph.num_features,
            graph.num_classes,
        )
        first, end = (int(offset) for offset in self.offsets[rank : rank + 2])
        self.labels, self._own = torch.from_numpy(graph.y).long(), _rows(graph, first, end)
        # The edges of others are dropped with the graph.
        partitioned = job.topology == "partitioned"
        self._edges = own_edges(graph.in_edges, first, end) if partitioned else graph.in_edges
        self.device = torch.device(job.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", rank % torch.cuda.device_count())

    def sampler(self, fanouts: tuple[int, ...]) -> NeighborSampler | PartitionedSampler:
        """Sampler for the topology; its count of sent bytes starts at zero."""
        if self.job.topology == "partitioned":
            return PartitionedSampler(self._edges, self.offsets, self._sampling, fanouts, seed=self.job.seed)
        return NeighborSampler(self._edges, fanouts, seed=self.job.seed)

    def loader(
        self, transport: Transport, fanouts: tuple[int, ...], mode: Mode, seeds: NDArray[np.int64]
    ) -> BatchLoader:
        """Loader of batches for nodes of all machines; its cache is filled, its byte counts are zero."""
        cached = self.plan.machines[self.rank].ids if mode.cached else None
        fetcher = Fetcher(
            self._store(cached),
            transport,
            ids=self._ids,
            bits=mode.bits,
            formats=self.job.row_format,
            seed=self.job.seed,
        )
        if cached is not None:
            fetcher.fill_cache()
        fetcher.sent_bytes = fetcher.received_bytes = 0
        owner = self.owner_of(seeds)
        by_machine = [seeds[owner == machine] for machine in range(self.job.workers)]
        return BatchLoader(
            fetcher,
            self.sampler(fanouts),
            self.labels,
            by_machine,
            self.job.batch_size,
            depth=mode.depth,
            threads=self.job.threads,
            check=self.check_files,
        )

    def owner_of(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Machine of each node."""
        return np.searchsorted(self.offsets, nodes, side="right") - 1

    def _store(self, cached: NDArray[np.int64] | None) -> RowStore:
        if self.device.type == "cpu":
            return RowStore(self._own, self.offsets, self.rank, cached)
        return DeviceStore(
            self._own, self.offsets, self.rank, cached, device=self.device, prefix=self.job.prefix
        )


def _rows(graph: GraphData, first: int, end: int) -> torch.Tensor:
    """Features of a range of nodes, dense."""
    x = graph.x
    rows = x.rows(np.arange(first, end)).to_dense() if isinstance(x, SparseRows) else x[first:end]
    return torch.from_numpy(np.ascontiguousarray(rows))
