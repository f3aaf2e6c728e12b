"""One graph partitioned over the ranks of a process group, for the user's own models."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import Data

from wirewise import graph as graphs
from wirewise.errors import InputError
from wirewise.graph import Part
from wirewise.hosts import OwnedFolder
from wirewise.instruments import argument, note_fact
from wirewise.integrations.pyg import losses
from wirewise.integrations.pyg.budget import Interval
from wirewise.integrations.pyg.edges import EdgeLists
from wirewise.integrations.pyg.model import Bundle, distributed_copies
from wirewise.integrations.pyg.outputs import strip_tracking, track_outputs
from wirewise.integrations.pyg.own_data import own_data, prepare_data
from wirewise.integrations.pyg.own_rows import RowStatistics, plain_rows, statistics_of
from wirewise.integrations.pyg.view import GraphView
from wirewise.log import logger
from wirewise.runtime import full_graph
from wirewise.runtime.full_graph.local import LocalGraph

__all__ = ["Job"]

_log = logger("graph")
_PROVE_EVERY = 200
"""A proof takes half an epoch of 10,000 nodes: every 200 epochs 0.25 % of them."""
_READING = threading.Lock()
"""Python 3.11 cannot parse the heads of arrays in several threads at once, which may be ranks."""


class Job:
    """Graph partitioned over the ranks of a process group.

    Args:
        data: The whole graph, on rank 0; None on the others. Masks, node ids (`train_idx`) or `split` define the
            training nodes. Self loops, repeated edges, and attributes of nodes and edges are kept. It may have no `x`
            or no `y`; with neither labels nor masks every node trains.
        split: Nodes that train, validate and test, as masks or node ids, by "train", "valid" (or "val") and "test",
            such as OGB's `dataset.get_idx_split()`; replaces the split of `data`.
        mode: Format of halo rows, a name of `wirewise.runtime.full_graph.MODES` or "uniform-8", "uniform-4", ...
        parts: Folder of parts written by `wirewise data partition`, in place of `data`; then no process needs the
            whole graph. Without it, rank 0 writes the parts to a temporary folder that all ranks must see.
        group: Process group. Defaults to the default one.
        mask_column: Index of the split to use if masks of `data` are [N, splits].
        gradient_bits: Width of weight gradients between the ranks: 32 (float32) or 16 (bfloat16).
        seed: Seed of partition and rounding.
        replan_every: Training steps between decisions on bit widths.
        prove_every: Training steps, and evaluations, between two proofs that rows of nodes do not mix outside
            convolutions; a change of the model triggers a proof at once. Defaults to 200, growing to 800 while
            nothing changes.
        timeout_s: Seconds after which a hung rank is an error on all others.

    Attributes:
        data: This rank's nodes as PyG `Data`: x, y, masks and all other attributes of its nodes, n_id (global ids);
            edge_index, which convolutions read, and attributes of the edges in its order.

    Raises:
        InputError: There is no process group, neither data nor parts were given, or the graph has several node types.
        GraphError: The graph or the parts are unusable.
    """

    def __init__(
        self,
        data: Data | None = None,
        *,
        split: Mapping[str, Any] | None = None,
        mode: str = "adaqp",
        parts: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        store: Any = None,
        mask_column: int | None = None,
        gradient_bits: int = full_graph.GRADIENT_BITS,
        seed: int = 0,
        replan_every: int = 20,
        prove_every: int | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        if group is None:
            if not dist.is_initialized():
                raise InputError(
                    "no process group; call torch.distributed.init_process_group first and start the script by torchrun"
                )
            group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
            assert group is not None
        if prove_every is not None and prove_every < 1:
            raise InputError(f"prove_every is {prove_every}; expected a number of steps above 0")
        self.prove_every = prove_every
        self.transport = full_graph.Transport(group, timeout_s=timeout_s, store=store, calls="graph")
        self._temporary: OwnedFolder | None = None
        folder = Path(parts) if parts is not None else self._write_parts(data, split, seed, mask_column)
        try:
            with _READING:
                part = graphs.load_part(folder, self.transport.rank, self.transport.world_size)
            if parts is None:
                self.transport.all_reduce(torch.zeros(1), "all ranks have read their part")
        finally:
            if self._temporary is not None:
                self._temporary.close()
        self.tensors = full_graph.PartTensors(part, dense=True)
        exchange_mode = full_graph.mode(argument("graph_mode", mode), gradient_bits=gradient_bits)
        self.exchange = full_graph.HaloExchange(part, self.transport, exchange_mode, seed=seed)
        self.bits = full_graph.BitController(self.exchange, self.tensors, replan_every=replan_every)
        self._pairs = _local_pairs(part)
        self.data = own_data(self.tensors, self._pairs.shape[1])
        x = plain_rows(self.data.x) if self.data.x is not None else self.tensors.own_features()
        # Rows of float64 travel whole in every mode.
        note_fact("graph_mode", exchange_mode.name)
        note_fact("graph_bits", "64" if x.dtype == torch.float64 else str(exchange_mode.bits))
        self._features = x, x._version
        """Features as the parts hold them, and their version: what a script has changed has no halo rows there."""
        self.contract = losses.LossContract.of(self.data.train_mask, self.transport)
        self._layers = 0
        self._bundles: weakref.WeakSet[Bundle] = weakref.WeakSet()

    def proof_interval(self) -> Interval:
        """Interval between repeated proofs, in calls."""
        return Interval(_PROVE_EVERY, grows=True) if self.prove_every is None else Interval(self.prove_every)

    def _write_parts(
        self, data: Data | None, split: Mapping[str, Any] | None, seed: int, mask_column: int | None
    ) -> Path:
        """Rank 0 partitions and writes; all ranks learn the folder, or that there is none."""
        folder, failure = "", None
        if self.transport.rank == 0:
            self._temporary = OwnedFolder(Path(tempfile.gettempdir()), "wirewise-parts-")
            try:
                if data is None:
                    raise InputError(
                        "rank 0 got neither data nor parts; give the graph to rank 0, or parts to all ranks"
                    )
                whole = graphs.from_pyg(prepare_data(data, split), mask_column=mask_column)
                owner = graphs.partition(whole, self.transport.world_size, seed=seed)
                graphs.save_parts(whole, owner, self._temporary.path)
                folder = str(self._temporary.path)
            except Exception as error:
                self._temporary.close()
                failure = error
        name = self.transport.from_first(os.fsencode(folder), "where the parts are")
        if failure is not None:
            raise failure
        if not name:
            raise InputError("rank 0 cannot use the graph that it was given; its message says why")
        return Path(os.fsdecode(name))

    @overload
    def distribute(self, model: nn.Module, /) -> nn.Module: ...

    @overload
    def distribute(self, model: nn.Module, /, *more: nn.Module) -> tuple[nn.Module, ...]: ...

    def distribute(self, model: nn.Module, /, *more: nn.Module) -> nn.Module | tuple[nn.Module, ...]:
        """Copy modules so that the same calls run on own nodes and train across all ranks.

        The copies share their parameters with the modules, which are unchanged and still run on one process. Names in
        `state_dict` are the same.

        Args:
            model: Module with convolutions.
            more: Modules that read its outputs or use its parameters, such as a head or a decoder.

        Returns:
            The copy, or a tuple of copies for several modules.

        Raises:
            InputError: A module cannot run distributed; the message names it.
        """
        graph = LocalGraph(self.tensors, self.exchange)
        edges = EdgeLists(self.tensors.part, self._pairs, self.tensors.device)
        view = GraphView(
            graph, self.data.edge_index, edges, self._edge_counts(), *self._features, self._edge_rows()
        )
        bundle = distributed_copies([model, *more], self, view, self._layers)
        self._bundles.add(bundle)
        self._layers += bundle.convolutions
        _log.info(
            "%s is distributed, with %d exchanges",
            " and ".join(type(one).__name__ for one in [model, *more]),
            bundle.convolutions,
        )
        twins = tuple(member.twin for member in bundle.members)
        return twins if more else twins[0]

    def synchronize(self) -> None:
        """Broadcast the parameters and buffers of rank 0 to all ranks, in place; a collective call.

        Optimizer states are left unchanged: create optimizers anew if ranks differed.
        """
        _log.info("all ranks take the parameters of rank 0")
        for bundle in sorted(self._bundles, key=lambda one: one.number):
            self.transport.broadcast(bundle.state(), "the parameters of job.synchronize")

    def _edge_rows(self) -> tuple[Tensor, ...]:
        names = (*self.tensors.part.edge_data, "edge_weight")
        return tuple(plain_rows(self.data[name]) for name in names if isinstance(self.data.get(name), Tensor))

    def _edge_counts(self) -> set[int]:
        """Edges of the whole graph: as they are, with a loop added for each node, or for each in place of those."""
        part, (source, target) = self.tensors.part, self._pairs
        counts = torch.tensor([len(source), int((source == target).sum())])
        self.transport.all_reduce(counts, "number of edges")
        edges, loops = counts.tolist()
        return {edges, edges + part.num_nodes, edges - loops + part.num_nodes}

    def mean(self, values: Tensor, mask: Tensor | None = None, *, weights: Tensor | None = None) -> Tensor:
        """Mean of values over nodes of all ranks, equal on all ranks, as a loss or a part of one; a collective call.

        Args:
            values: A value (or several) for each own node, computed from outputs of distributed models.
            mask: Own nodes to include, bool [own]. Defaults to every row of `values`, whatever their number.
            weights: Weight of each row of `values`, such as that of its class; the mean is divided by their sum.

        Raises:
            InputError: Shapes do not match, no node of any rank is masked, or the values use parameters directly.
        """
        values, weights, rows = self._masked(values, mask, weights)
        each = values.flatten(1).mean(1) if values.dim() > 1 else values
        if weights is None:
            weights = torch.ones(len(each), dtype=torch.float64)
        total = weights.double().sum()
        self.transport.all_reduce(total, "weights of a loss")
        if not float(total):
            raise InputError("the mean runs over no node of any rank; expected a mask with at least one node")
        total_each = losses.global_sum((each * weights.to(each)).sum(), rows, self.contract)
        return track_outputs(total_each / float(total))

    def statistics(self, values: Tensor, mask: Tensor | None = None) -> RowStatistics:
        """Statistics of each column over the nodes of all ranks, such as those of `job.data.x`; a collective call.

        Args:
            values: Rows of own nodes or edges, [own, ...], without gradient.
            mask: Rows to include, bool [own]. Defaults to all.

        Raises:
            InputError: The mask does not fit, or no row of any rank is included.
        """
        if not isinstance(values, Tensor) or not values.dim():
            raise InputError(
                f"got {type(values).__name__} for statistics; expected a tensor with a row for each node"
            )
        values = strip_tracking(plain_rows(values))
        if mask is not None:
            if mask.dtype != torch.bool or mask.shape != values.shape[:1]:
                raise InputError(
                    f"got a mask of {mask.dtype} {list(mask.shape)} for {len(values)} rows; expected bool "
                    f"[{len(values)}]"
                )
            values = values[mask]
        return statistics_of(values, self.transport)

    def sum(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Sum of values over nodes of all ranks, equal on all ranks, as a loss or a part of one; a collective call.

        Args:
            values: A value (or several) for each own node, computed from outputs of distributed models.
            mask: Own nodes to include, bool [own]. Defaults to every row of `values`, whatever their number.

        Raises:
            InputError: Shapes do not match, or the values use parameters directly.
        """
        values, _, rows = self._masked(values, mask, None)
        return track_outputs(losses.global_sum(values.sum(), rows, self.contract))

    def cross_entropy(
        self,
        logits: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Cross entropy over nodes of all ranks, as `torch.nn.functional.cross_entropy`; a collective call.

        Args:
            logits: Scores of own nodes, [own, classes], from distributed models.
            target: Classes, int64 [own], or probabilities, [own, classes].
            mask: Own nodes to include, bool [own]. Defaults to every row of `logits`.
            weight: Weight of each class, [classes]; the mean is divided by the weights of all included nodes.
            ignore_index: Class of nodes to leave out.
            label_smoothing: Probability that is spread over all classes, in [0, 1].

        Returns:
            The mean, equal on all ranks.

        Raises:
            InputError: Shapes do not match, or no node of any rank is included.
        """
        if len(logits) != len(target):
            raise InputError(
                f"got {len(logits)} rows of logits and {len(target)} of target; expected as many"
            )
        each = nn.functional.cross_entropy(
            logits,
            target,
            weight,
            reduction="none",
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        counts = torch.ones(len(target), dtype=torch.float64)
        if not target.is_floating_point():
            kept = target != ignore_index
            counts = kept.double()
            if weight is not None:
                counts[kept] = weight[target[kept]].double()
        each, kept_counts, rows = self._masked(each, mask, counts)
        assert kept_counts is not None
        total = kept_counts.sum()
        self.transport.all_reduce(total, "weights of a cross entropy")
        if not float(total):
            raise InputError(
                "the mean runs over no node of any rank; expected a mask and classes with at least one"
            )
        return track_outputs(losses.global_sum(each.sum(), rows, self.contract) / float(total))

    def _masked(
        self, values: Tensor, mask: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Values and weights of the masked rows, and which own rows those are."""
        own = self.tensors.part.num_own
        if not isinstance(values, Tensor):
            raise InputError(
                f"values are a {type(values).__name__}; expected a tensor with a value for each node"
            )
        if mixes := getattr(values, "mixes", ""):
            raise InputError(
                f"values depend on {mixes}() over own rows of an output without gradient, which is another number on "
                "each rank; compute it by job.mean or job.sum of the detached output"
            )
        if values.dim() == 0:
            raise InputError("got one number; expected a value for each node (reduction='none')")
        if weights is not None and (weights.shape != values.shape[:1] or weights.requires_grad):
            raise InputError(
                f"weights have shape {list(weights.shape)}; expected a constant for each of {len(values)} rows"
            )
        values, weights = strip_tracking(plain_rows(values)), plain_rows(weights)
        if mask is None:
            return values, weights, None
        if mask.dtype != torch.bool or mask.shape != (own,) or len(values) != own:
            raise InputError(
                f"got a mask of {mask.dtype} {list(mask.shape)} for {len(values)} values; expected bool [{own}] and a "
                "value for each own node"
            )
        return values[mask], weights if weights is None else weights[mask], mask

    def accuracy(self, logits: Tensor, mask: Tensor) -> float:
        """Fraction of correct predictions among the masked nodes of all ranks; a collective call.

        Args:
            logits: One row per own node, [own, classes].
            mask: Own nodes to include, bool [own].

        Raises:
            InputError: The labels are not classes, or shapes do not match.
        """
        y = self._classes(mask)
        if logits.dim() != 2 or len(logits) != self.tensors.part.num_own:
            raise InputError(
                f"logits have shape {list(logits.shape)}; expected [{self.tensors.part.num_own}, classes], a row for "
                "each own node"
            )
        right = (logits[mask].argmax(dim=1) == y).sum()
        counts = torch.stack([right, mask.sum()]).double()
        self.transport.all_reduce(counts, "accuracy")
        return float(counts[0] / counts[1].clamp_min(1))

    def _classes(self, mask: Tensor) -> Tensor:
        """Classes of the masked own nodes; labels of OGB are [N, 1], and floats where some are unknown."""
        y, own = self.data.y, self.tensors.part.num_own
        if mask.dtype != torch.bool or mask.shape != (own,):
            raise InputError(f"got a mask of {mask.dtype} {list(mask.shape)}; expected bool [{own}]")
        if y is None:
            raise InputError(
                "the graph has no y; accuracy counts classes, expected labels in the Data of pyg.Job"
            )
        chosen = y[mask].squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y[mask]
        if chosen.dim() != 1 or (chosen.is_floating_point() and not bool((chosen == chosen.floor()).all())):
            raise InputError(
                f"labels are {y.dtype} of shape {list(y.shape)}; accuracy counts classes, expected whole numbers "
                "[own] or [own, 1]. Use job.mean(values, mask) for other measures"
            )
        return chosen.long()


def _local_pairs(part: Part) -> np.ndarray:
    """Edges of a part by local numbers, int64 [2, E], ascending by target."""
    target = np.repeat(np.arange(part.num_own), np.diff(part.indptr))
    return np.stack([part.indices.astype(np.int64), target])
