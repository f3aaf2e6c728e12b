"""State shared by the modules of one distributed model on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wirewise.graph import Part
from wirewise.integrations.pyg.edges import EdgeLists
from wirewise.integrations.pyg.own_rows import plain_rows
from wirewise.runtime import full_graph
from wirewise.runtime.full_graph.local import LocalGraph

if TYPE_CHECKING:
    from wirewise.integrations.pyg.probe import Recording

__all__ = ["GraphView"]


@dataclass
class GraphView:
    """Part, its edges as read by convolutions, and the model's position in its step."""

    graph: LocalGraph
    token: Tensor
    """`edge_index` of the job's data."""
    edges: EdgeLists
    edge_counts: set[int]
    """Number of edges of the whole graph, without and with the self loops that convolutions add."""
    own_features: Tensor
    features_version: int
    edge_rows: tuple[Tensor, ...] = ()
    """Edge attributes, as in `job.data`."""
    inside: bool = False
    """Whether the distributed model's forward is running."""
    recording: Recording | None = None
    """The proof that rows do not mix, while it runs."""
    with_gradients: bool = False
    """Whether gradients were enabled when the model was called."""
    sequence: list[int] = field(default_factory=list)
    """Indices of the convolutions called by the current forward, in order."""

    @property
    def part(self) -> Part:
        """The part of this rank."""
        return self.graph.part

    @property
    def transport(self) -> full_graph.Transport:
        """Messages between the ranks."""
        return self.graph.exchange.transport

    @property
    def replaying(self) -> bool:
        """Whether the proof is running on a subset of rows, with recorded outputs in place of the convolutions."""
        return self.recording is not None and self.recording.rows is not None

    def is_of_edges(self, value: Tensor) -> bool:
        """Whether a tensor is an edge attribute, which may have as many rows as there are own nodes."""
        value = plain_rows(value)
        return any(value is rows for rows in self.edge_rows)

    def stored_features(self, x: Any) -> Tensor | None:
        """Input features of own and halo rows if `x` is the unchanged own features, else None."""
        if not _is(x, self.own_features) or x._version != self.features_version or x.requires_grad:
            return None
        rows = self.graph.tensors.features()
        return rows if isinstance(rows, torch.Tensor) and rows.dtype == x.dtype else None


def _is(x: Any, own: Tensor) -> bool:
    """Whether both are one tensor, or one is the detached other, as gradient checkpointing makes it."""
    if not isinstance(x, Tensor) or x.shape != own.shape or x.dtype != own.dtype:
        return False
    return x is own or (x.data_ptr() == own.data_ptr() and x.stride() == own.stride())
