"""Train your own PyTorch Geometric model on a graph that is spread over ranks, in your own script.

    dist.init_process_group("gloo")              # as torchrun scripts do
    job = pyg.Job(data, mode="adaqp")            # partition once; keep this rank's part
    model = job.distribute(Net(...))             # halo exchange under every convolution
    data = job.data                              # own nodes: x, y, masks
    model(data.x, data.edge_index)               # as before

Every convolution of the model is wrapped: boundary rows are sent, the convolution runs on the central nodes
while they travel, and on the marginal nodes when the halo rows are there. Convolutions that take a pair of
source and destination rows (SAGEConv, GATConv, GATv2Conv, GINConv, GraphConv, ...) are called that way;
GCNConv, which does not, is called on own and halo rows together with its weights computed from the degrees of
the whole graph.

After `loss.backward()` the gradients are those of the mean loss over the training nodes of all ranks, added to what was
there before, as on one process.
"""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, MessagePassing, norm

from wirewise import graph as graphs
from wirewise.errors import InputError
from wirewise.graph import Part, edge_weights
from wirewise.runtime import full_graph
from wirewise.runtime.full_graph.local import LocalGraph

__all__ = ["Job", "distribute"]


class Job:
    """One graph spread over the ranks of a process group.

    Args:
        data: The whole graph, needed on rank 0 only; None on the others is fine. Masks or `split` say what
            to train.
        mode: How halo rows travel, a name of `wirewise.runtime.full_graph.MODES` or "uniform-8",
            "uniform-4", ...
        parts: Folder of parts that `wirewise data partition` wrote, in place of `data`; then no process needs
            the whole graph. Without it rank 0 writes the parts to a temporary folder that all ranks must see.
        group: Process group; None: the default one.
        seed: Seed of partition and rounding.
        replan_every: Training steps between decisions on bits.
        timeout_s: Seconds after which a silent rank is an error on all others.

    Attributes:
        data: This rank's nodes as PyG `Data`: x, y, train_mask, val_mask, test_mask, n_id (global ids).

    Raises:
        InputError: No process group, neither data nor parts, or a graph with self loops or repeated edges.
        GraphError: The graph or the parts cannot be used.
    """

    def __init__(
        self,
        data: Data | None = None,
        *,
        mode: str = "adaqp",
        parts: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        store: Any = None,
        seed: int = 0,
        replan_every: int = 20,
        timeout_s: float = 120.0,
    ) -> None:
        if group is None:
            if not dist.is_initialized():
                raise InputError(
                    "no process group; call torch.distributed.init_process_group first and start the script by torchrun"
                )
            group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
        self.transport = full_graph.Transport(group, timeout_s=timeout_s, store=store)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        folder = Path(parts) if parts is not None else self._write_parts(data, seed)
        part = graphs.load_part(folder, self.transport.rank, self.transport.world_size)
        if parts is None:
            self.transport.all_reduce(torch.zeros(1), "all ranks have read their part")
        if self._temporary is not None:
            self._temporary.cleanup()
        self.tensors = full_graph.PartTensors(part, dense=True)
        self.exchange = full_graph.HaloExchange(part, self.transport, full_graph.mode(mode), seed=seed)
        self.bits = full_graph.BitController(self.exchange, self.tensors, replan_every=replan_every)
        self.data = _own_data(self.tensors)

    def _write_parts(self, data: Data | None, seed: int) -> Path:
        """Rank 0 partitions and writes; all ranks learn the folder."""
        folder = ""
        if self.transport.rank == 0:
            if data is None:
                raise InputError(
                    "rank 0 got neither data nor parts; give the graph to rank 0, or parts to all ranks"
                )
            _refuse_lost_edges(data)
            self._temporary = tempfile.TemporaryDirectory(prefix="wirewise-parts-")
            folder = self._temporary.name
            whole = graphs.from_pyg(data)
            graphs.save_parts(whole, graphs.partition(whole, self.transport.world_size, seed=seed), folder)
        name = torch.zeros(4096, dtype=torch.uint8)
        name[: len(folder.encode())] = torch.tensor(list(folder.encode()), dtype=torch.uint8)
        self.transport.all_reduce(name, "where the parts are")
        return Path(bytes(name.tolist()).rstrip(b"\0").decode())

    def distribute(self, model: nn.Module) -> nn.Module:
        """Wrap the convolutions of `model`; returns a module with the same call that trains on all ranks."""
        local = LocalGraph(self.tensors, self.exchange)
        return _Distributed(distribute(model, local), self)

    def accuracy(self, logits: Tensor, mask: Tensor) -> float:
        """Share of right answers among the masked nodes of all ranks; a collective call."""
        right = (logits[mask].argmax(dim=1) == self.data.y[mask]).sum()
        counts = torch.stack([right, mask.sum()]).double()
        self.transport.all_reduce(counts, "accuracy")
        return float(counts[0] / counts[1].clamp_min(1))


class _Distributed(nn.Module):
    """The user's model; begins an exchange epoch with every training step and sums the gradients at its end."""

    def __init__(self, module: nn.Module, job: Job) -> None:
        super().__init__()
        self.module = module
        object.__setattr__(self, "job", job)
        for tensor in [*module.parameters(), *module.buffers()]:
            if job.transport.rank:
                tensor.detach().zero_()
            job.transport.all_reduce(tensor.detach(), "broadcast of the parameters")
        self._reducer = full_graph.GradientReducer(
            module.parameters(), job.transport, bits=job.exchange.mode.gradient_bits
        )
        self._reducer.at_end = self._end_step
        self._steps = 0

    def _end_step(self) -> None:
        self._reducer.finish()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the user's model, on own nodes."""
        exchange, part = self.job.exchange, self.job.tensors.part
        exchange.training = self.training and torch.is_grad_enabled()
        if not exchange.training:
            return self.module(*args, **kwargs)
        self.job.bits.before_epoch(self._steps)
        exchange.epoch = self._steps
        self._steps += 1
        self._reducer.begin(accumulate=True)
        out = self.module(*args, **kwargs)
        # The user's loss is a mean over own training nodes; the mean over all ranks weighs it by their share.
        share = int((part.split == 0).sum()) / part.train_count
        return _scale_gradient(out, share)


def _scale_gradient(out: Tensor, factor: float) -> Tensor:
    if not isinstance(out, Tensor):
        raise InputError(
            f"the model returned a {type(out).__name__}; expected one tensor, a row for each own node"
        )
    scaled = out.view_as(out)
    scaled.register_hook(lambda grad: torch.nan_to_num(grad) * factor if factor == 0.0 else grad * factor)
    return scaled


def _refuse_lost_edges(data: Data) -> None:
    """Parts hold each edge once and no loops; a graph that has others would silently be another one."""
    if data.edge_index is None:
        return
    source, target = data.edge_index.cpu()
    loops = int((source == target).sum())
    pairs = torch.unique(data.edge_index.cpu(), dim=1).shape[1]
    if loops or pairs < len(source):
        raise InputError(
            f"the graph has {loops} self loops and {len(source) - pairs} repeated edges, which parts do not keep; "
            "expected each edge once and no loops: apply RemoveSelfLoops and RemoveDuplicatedEdges of "
            "torch_geometric.transforms (GCNConv, GATConv and GATv2Conv add loops of their own)"
        )


def _own_data(tensors: full_graph.PartTensors) -> Data:
    own = Data(x=tensors.own_features(), y=tensors.y, n_id=tensors.ids)
    # Convolutions use the edges of the part; this list only shows them to the user's code.
    part = tensors.part
    target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
    inside = part.indices < part.num_own
    own.edge_index = torch.from_numpy(np.stack([part.indices[inside].astype(np.int64), target[inside]]))
    for name, rows in zip(("train_mask", "val_mask", "test_mask"), tensors.split_rows.values(), strict=True):
        own[name] = torch.zeros(part.num_own, dtype=torch.bool)
        own[name][rows] = True
    return own


def distribute(model: nn.Module, graph: LocalGraph) -> nn.Module:
    """Wrap every convolution of `model` in place and return the model.

    Args:
        model: Called by the user as before, with the own rows of the part in place of all nodes.
        graph: What this rank holds.

    Raises:
        InputError: The model has no convolution, or one that cannot be split (several hops in one call, or
            a normalization over all nodes).
    """
    found = [name for name, module in model.named_modules() if isinstance(module, MessagePassing)]
    if not found:
        raise InputError(
            f"{type(model).__name__} has no torch_geometric.nn.MessagePassing module; nothing can be distributed"
        )
    for name, module in model.named_modules():
        if _looks_at_all_nodes(module):
            raise InputError(
                f"{name} is a {type(module).__name__}, whose statistics run over all nodes of one rank; use "
                "torch.nn.LayerNorm (or PyG's LayerNorm with mode='node'), which give the same result on one and on "
                "many ranks"
            )
    for layer, name in enumerate(found):
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], _HaloConv(model.get_submodule(name), graph, layer, name))
    return model


_GRAPH_WIDE = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    norm.BatchNorm,
    norm.DiffGroupNorm,
    norm.GraphNorm,
    norm.GraphSizeNorm,
    norm.HeteroBatchNorm,
    norm.HeteroLayerNorm,
    norm.InstanceNorm,
    norm.MeanSubtractionNorm,
    norm.PairNorm,
)
"""Modules whose result for a node depends on all nodes."""


def _looks_at_all_nodes(module: nn.Module) -> bool:
    return isinstance(module, _GRAPH_WIDE) or (isinstance(module, norm.LayerNorm) and module.mode == "graph")


class _HaloConv(nn.Module):
    """One convolution of the user's, between exchanges."""

    def __init__(self, conv: nn.Module, graph: LocalGraph, layer: int, name: str) -> None:
        super().__init__()
        self.conv, self.layer, self.name = conv, layer, name
        object.__setattr__(self, "graph", graph)
        self.paired = _takes_pair(conv)
        part = graph.part
        weights = None
        if isinstance(conv, GCNConv):
            weights = _take_over_normalization(conv, part)
        elif not self.paired:
            raise InputError(
                f"{name} is a {type(conv).__name__}, which takes no pair of source and destination rows; expected "
                "GCNConv or a convolution whose forward accepts (x_source, x_target), such as SAGEConv or GATConv"
            )
        self._edges = _Edges(part, weights, self_loops=weights is not None, device=graph.tensors.device)

    def forward(self, x: Tensor, edge_index: Any = None, *rest: Any, **named: Any) -> Tensor:
        """Rows of the own nodes, [own, D]; edges given by the caller are replaced by the part's.

        Raises:
            InputError: The caller gives more than rows and edges, which would be lost.
        """
        graph = self.graph
        given = [f"argument {n}" for n, value in enumerate(rest, start=3) if value is not None]
        given += [name for name, value in named.items() if value is not None]
        if given:
            raise InputError(
                f"{self.name} ({type(self.conv).__name__}) is called with {', '.join(given)} besides rows and edges, "
                "which a distributed convolution does not carry out (edge weights and edge features are not kept with "
                "the parts); call it with x and edge_index only"
            )
        if self.layer == 0 and not x.requires_grad and x is graph.tensors.own_features():
            return self._whole(graph.tensors.features())
        own, ticket = graph.exchange.start(x, self.layer)
        if not self.paired:
            return self._whole(torch.cat([own, graph.exchange.finish(ticket)]))
        central = graph.part.num_central
        y_central = self.conv((own, own[:central]), self._edges.central) if central else None
        rows = torch.cat([own, graph.exchange.finish(ticket)])
        if central == len(own):
            assert y_central is not None
            # Nothing is marginal, yet the halo (empty) stays part of the autograd graph.
            return y_central + rows[:0].sum()
        # Targets come first among the sources, so that a loop that the convolution adds joins a node to itself.
        y_marginal = self.conv(
            (torch.cat([rows[central : len(own)], own[:central], rows[len(own) :]]), own[central:]),
            self._edges.marginal,
        )
        return y_marginal if y_central is None else torch.cat([y_central, y_marginal])

    def _whole(self, rows: Tensor) -> Tensor:
        """All own nodes in one call, from rows of own and halo nodes."""
        own, edges = self.graph.part.num_own, self._edges
        if self.paired:
            return self.conv((rows, rows[:own]), edges.all)
        return self.conv(rows, edges.all, edges.weight)[:own]


class _Edges:
    """Local edge lists [2, E]: of all, of central and of marginal nodes (numbered from 0)."""

    def __init__(self, part: Part, weights: Any, *, self_loops: bool, device: torch.device) -> None:
        target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
        pairs = np.stack([part.indices.astype(np.int64), target])
        split = int(part.indptr[part.num_central])
        self.central = torch.from_numpy(pairs[:, :split].copy()).to(device)
        marginal = pairs[:, split:].copy()
        marginal[1] -= part.num_central
        marginal[0] = _marginal_first(marginal[0], part)
        self.marginal = torch.from_numpy(marginal).to(device)
        self.weight = None
        if self_loops:
            weight, self_weight = weights
            loops = np.arange(part.num_own)
            pairs = np.concatenate([pairs, np.stack([loops, loops])], axis=1)
            self.weight = torch.from_numpy(np.concatenate([weight, self_weight])).to(device)
        self.all = torch.from_numpy(pairs).to(device)


def _marginal_first(sources: np.ndarray, part: Part) -> np.ndarray:
    """Numbers of sources where the marginal nodes stand before the central ones; halo nodes stay where they are."""
    central, own = part.num_central, part.num_own
    moved = np.where(sources < central, sources + own - central, sources - central)
    return np.where(sources < own, moved, sources)


def _takes_pair(conv: nn.Module) -> bool:
    """Whether the annotation of `x` in the convolution's forward names a pair of tensors."""
    parameter = next(iter(inspect.signature(conv.forward).parameters.values()))
    return "Pair" in str(parameter.annotation) or "Tuple" in str(parameter.annotation)


def _take_over_normalization(conv: GCNConv, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """GCNConv would normalize by the degrees of the local edges; give it the weights of the whole graph instead."""
    if not conv.normalize:
        return edge_weights(part, "sum")
    if not conv.add_self_loops or conv.improved:
        raise InputError(
            f"GCNConv(add_self_loops={conv.add_self_loops}, improved={conv.improved}) is not supported; "
            "expected the defaults (self loops of weight 1) or normalize=False"
        )
    conv.normalize = False
    # PyG takes the in-degree, self loop included, of both ends; on undirected graphs this is the weight of
    # Kipf & Welling.
    scale = 1.0 / np.sqrt(part.in_degree + 1.0)
    target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
    weight = scale[part.indices] * scale[target]
    return weight.astype(np.float32), (scale[: part.num_own] ** 2).astype(np.float32)
