"""Sampled batches of a PyG graph that every rank holds; the ranks share the seeds of each batch."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader.utils import filter_data

from wirewise.errors import GraphError, InputError
from wirewise.graph.convert import refuse_other_kinds
from wirewise.graph.foreign import to_numpy
from wirewise.graph.sampling import Batch, NeighborSampler
from wirewise.graph.structure import InEdges, offsets_of, order_by_target
from wirewise.integrations.pyg.loader_options import LoaderOptions
from wirewise.rng import stream_key
from wirewise.runtime.transport import Transport

__all__ = ["SampledLoader", "node_count", "piece_offsets"]

_COMPARED_EDGES = 1000
"""Edges by which ranks compare their graphs: all of a large graph would take seconds."""


def piece_offsets(total: int, batch_size: int, ranks: int, *, drop_last: bool = False) -> NDArray[np.int64]:
    """Offsets of the seeds of batch b on rank r, piece `b * ranks + r` of the order; int64 [batches * ranks + 1].

    A batch of all ranks has `batch_size * ranks` seeds, and the last batch the remainder; pieces differ by at most one
    seed. A last batch with fewer seeds than ranks takes some from the batch before, so that every rank has seeds.

    Raises:
        InputError: There are too few seeds for every rank to have one in each batch.
    """
    batches, left = divmod(total, batch_size * ranks)
    sizes = np.full(batches, batch_size * ranks)
    if left and not drop_last:
        sizes = np.append(sizes, left)
        if left < ranks and batches:
            sizes[-2:] += np.array([left - ranks, ranks - left])
    if not len(sizes):
        raise InputError(
            f"{total} seeds do not fill a batch of {batch_size} on {ranks} ranks; expected a smaller batch_size, or "
            "drop_last=False"
        )
    if sizes.min() < ranks:
        raise InputError(
            f"{total} seeds in batches of {batch_size} leave one of {ranks} ranks without seeds in the last batch; "
            "expected a larger batch_size with enough seeds, or drop_last=True"
        )
    pieces = sizes[:, None] // ranks + (np.arange(ranks) < sizes[:, None] % ranks)
    return np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64)


class SampledLoader:
    """Loader of sampled batches, an epoch for each iteration.

    What a batch holds depends on (seed, epoch, number, rank) only, not on the number of threads.

    Args:
        data: Graph, the same on all ranks.
        num_neighbors: In-neighbours per node in each hop, the seeds' own first; -1 for all.
        seeds: Seeds of the batches, an entry for each: [n] or [2, n].
        given: Options, by the names of `LoaderOptions`.

    Attributes:
        epoch: Number of the next epoch.
        transport: Transport between the ranks that share the seeds. None if this rank has its own.

    Raises:
        InputError: An option is not supported or out of range, or ranks were given different ones.
        GraphError: The graph is unusable.
    """

    _seeds_name = "seeds"
    """Name of the argument with the seeds, for messages."""

    def __init__(
        self, data: Data, num_neighbors: Sequence[int], seeds: NDArray[np.int64], given: dict[str, Any]
    ) -> None:
        self.options = LoaderOptions.of(given)
        self.data, self.epoch = data, 0
        self.num_workers = self._threads()
        edges, self._order = _in_edges(data)
        self._edges, self._version = data.edge_index, getattr(data.edge_index, "_version", 0)
        self.sampler = NeighborSampler(
            edges, _fanouts(num_neighbors), semantics="frontier", seed=self.options.seed, edge_ids=True
        )
        self._count = seeds.shape[-1]
        self.rank, self.world_size = 0, 1
        self.transport: Transport | None = None
        if (group := self.options.process_group()) is not None:
            self._join(group, seeds)
        self._offsets = piece_offsets(
            self._count, self.options.batch_size, self.world_size, drop_last=self.options.drop_last
        )

    def __len__(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return (len(self._offsets) - 1) // self.world_size

    def __iter__(self) -> Iterator[Any]:
        """Batches of the next epoch."""
        edges = self.data.edge_index
        if edges is not self._edges or getattr(edges, "_version", 0) != self._version:
            raise InputError(
                "edge_index of the data changed after the loader was made, which samples the edges of then; make the "
                f"{type(self).__name__} anew"
            )
        self.epoch += 1
        return self._batches(self.epoch - 1)

    @property
    def batch_size(self) -> int:
        """Seeds of a batch of this rank."""
        return self.options.batch_size

    @property
    def dataset(self) -> range:
        """Numbers of the seeds of all ranks."""
        return range(self._count)

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, such as that from which training resumes."""
        self.epoch = epoch

    def _threads(self) -> int:
        """Number of threads: rows that an optimizer changes are read when a batch is needed, and not before."""
        tracked = [
            name
            for name, value in self.data.to_dict().items()
            if isinstance(value, Tensor) and value.requires_grad
        ]
        if tracked and self.options.num_workers:
            raise InputError(
                f"{', '.join(tracked)} of the data requires gradients, and {self.options.num_workers} threads would "
                "read values from before the last optimizer steps; expected num_workers=0"
            )
        return (0 if tracked else 1) if self.options.num_workers is None else self.options.num_workers

    def _join(self, group: dist.ProcessGroup, seeds: NDArray[np.int64]) -> None:
        """Share the seeds with the ranks of a group, which must have been given the same."""
        store = dist.distributed_c10d._get_default_store() if group is dist.group.WORLD else None
        transport = Transport(group, timeout_s=self.options.timeout_s, store=store)
        self.rank, self.world_size = transport.rank, transport.world_size
        if self.world_size == 1:
            return
        self.transport = transport
        own = self._identity(seeds)
        everyone = transport.from_all(json.dumps(own).encode(), f"the comparison of {type(self).__name__}")
        for rank, theirs in enumerate(map(json.loads, everyone)):
            first = json.loads(everyone[0])
            for name in (name for name in first if first[name] != theirs.get(name)):
                raise InputError(
                    f"{name} is {theirs.get(name)} on rank {rank} and {first[name]} on rank 0; give all ranks the "
                    "same, or distributed=False where each has seeds of its own"
                )

    def _identity(self, seeds: NDArray[np.int64]) -> dict[str, Any]:
        """Arguments that must be equal on all ranks, by name."""
        edge_index = to_numpy(self.data.edge_index)
        some = np.linspace(0, max(edge_index.shape[1] - 1, 0), _COMPARED_EDGES).astype(np.int64)
        return {
            "loader": type(self).__name__,
            "num_nodes": self.sampler.num_nodes,
            "edge_index": _digest(
                edge_index[:, some] if edge_index.size else edge_index, edge_index.shape[1]
            ),
            "num_neighbors": list(self.sampler.fanouts),
            self._seeds_name: _digest(seeds, self._count),
            **{name: getattr(self.options, name) for name in ("batch_size", "shuffle", "drop_last", "seed")},
        }

    def _batches(self, epoch: int) -> Generator[Any]:
        order = np.arange(self._count)
        if self.options.shuffle:
            order = np.random.default_rng(stream_key(self.options.seed, epoch)).permutation(self._count)
        make = partial(self._make, order, epoch)
        with closing(self._ahead(make) if self.num_workers else self._on_demand(make)) as batches:
            for batch in batches:
                yield batch if self.options.transform is None else self.options.transform(batch)

    def _on_demand(self, make: Callable[[int], Data]) -> Generator[Data]:
        for number in range(len(self)):
            yield make(number)

    def _ahead(self, make: Callable[[int], Data]) -> Generator[Data]:
        """Batches that threads make ahead, in order."""
        ahead = self.num_workers * (self.options.prefetch_factor or 2)
        waiting: deque[Future[Data]] = deque()
        pool = ThreadPoolExecutor(self.num_workers, "wirewise-sample")
        try:
            for number in range(len(self)):
                waiting.append(pool.submit(make, number))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _make(self, order: NDArray[np.int64], epoch: int, number: int) -> Data:
        piece = number * self.world_size + self.rank
        batch = self._batch(order[self._offsets[piece] : self._offsets[piece + 1]], epoch, piece)
        sizes = np.diff(self._offsets[number * self.world_size : (number + 1) * self.world_size + 1])
        batch.scale = self.world_size / sum(self._examples(int(size)) for size in sizes)
        if self.options.pin_memory and torch.cuda.is_available():
            batch = batch.pin_memory()
        return batch

    def _examples(self, seeds: int) -> int:
        """Number of losses of a batch, by its number of seeds."""
        return seeds

    def _batch(self, numbers: NDArray[np.int64], epoch: int, draw: int) -> Data:
        """Batch of some seeds, by their numbers."""
        raise NotImplementedError

    def _sampled(self, nodes: NDArray[np.int64], epoch: int, draw: int) -> Data:
        """Neighbourhood of some nodes, with the attributes of its nodes and edges."""
        sample = self.sampler.sample(nodes, epoch=epoch, batch=draw)
        outer = sample.layers[0]
        assert outer.e_id is not None
        node, edge = torch.from_numpy(sample.n_id), torch.from_numpy(self._order[outer.e_id])
        row, col = torch.from_numpy(outer.edge_index())
        batch = filter_data(self.data, node, row, col, edge)
        for name, value in (("n_id", node), ("e_id", edge)):
            # Data that are a batch of a larger graph keep the ids there, as with PyG's loaders.
            if name not in batch:
                batch[name] = value
        batch.num_sampled_nodes, batch.num_sampled_edges = _hop_sizes(sample)
        return batch


def _digest(values: NDArray[Any], count: int) -> str:
    found = hashlib.sha256(np.ascontiguousarray(values, dtype=np.int64).tobytes()).hexdigest()
    return f"{count} entries (digest {found[:8]})"


def _fanouts(given: Any) -> list[int]:
    whole = isinstance(given, (list, tuple)) and all(
        isinstance(fanout, (int, np.integer)) and not isinstance(fanout, bool) and fanout >= -1
        for fanout in given
    )
    if not whole or not given:
        raise InputError(
            f"num_neighbors is {given!r}; expected a list with a number for each hop, such as [15, 10], or -1 for all "
            "neighbours"
        )
    return [int(fanout) for fanout in given]


def _hop_sizes(sample: Batch) -> tuple[list[int], list[int]]:
    """Nodes and edges that each hop adds, the seeds first among the nodes."""
    hops = sample.layers[::-1]
    nodes = np.diff([0, sample.num_seeds, *(hop.num_sources for hop in hops)])
    edges = np.diff([0, *(len(hop.sources) for hop in hops)])
    return nodes.tolist(), edges.tolist()


def node_count(data: Any) -> int:
    """Number of nodes of a graph of one type of nodes and edges.

    Raises:
        GraphError: The data are not of this kind, or have no `edge_index` or attributes that batches use.
    """
    refuse_other_kinds(data)
    if not isinstance(data, Data):
        raise GraphError(f"got {type(data).__name__}; expected a torch_geometric.data.Data object")
    if data.edge_index is None:
        raise GraphError(
            "the Data object has no edge_index; expected sources and targets, integers [2, edges]"
        )
    if "adj_t" in data or "adj" in data:
        raise GraphError(
            "the Data object holds adj_t or adj besides edge_index; delete it, batches have edge_index"
        )
    if "scale" in data:
        raise GraphError("the Data object has an attribute scale, which batches use; rename it")
    return int(data.num_nodes)


def _in_edges(data: Data) -> tuple[InEdges, NDArray[np.int64]]:
    """In-neighbours of each node, self loops and repeated edges included, and the number of each edge in the data.

    Raises:
        GraphError: An edge is of a node that does not exist.
    """
    edge_index, nodes = to_numpy(data.edge_index), node_count(data)
    if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype.kind not in "iu":
        raise GraphError(
            f"edge_index is {edge_index.dtype} {list(edge_index.shape)}; expected integers of shape [2, edges]"
        )
    wrong = np.flatnonzero(((edge_index < 0) | (edge_index >= nodes)).any(axis=0))
    if len(wrong):
        raise GraphError(
            f"edge {wrong[0]} is {edge_index[:, wrong[0]].tolist()}; expected nodes from 0 to {nodes - 1}"
        )
    if nodes > np.iinfo(np.int32).max:
        raise GraphError(f"the graph has {nodes} nodes; expected at most {np.iinfo(np.int32).max}")
    order = order_by_target(edge_index)
    indices = edge_index[0][order].astype(np.int32)
    return InEdges(offsets_of(edge_index[1], nodes), indices, None), order
