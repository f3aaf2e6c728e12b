"""What the modules of one distributed model share on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wirewise.graph import Part
from wirewise.integrations.pyg.edges import EdgeLists
from wirewise.runtime import full_graph
from wirewise.runtime.full_graph.local import LocalGraph

if TYPE_CHECKING:
    from wirewise.integrations.pyg.probe import Recording

__all__ = ["GraphView"]


@dataclass
class GraphView:
    """A part, its edges as convolutions read them, and where the model is in its step."""

    graph: LocalGraph
    token: Tensor
    """`edge_index` of the job's data."""
    edges: EdgeLists
    edge_counts: set[int]
    """Edges of the whole graph, without and with what convolutions add: a row for each may be normalized."""
    own_features: Tensor
    features_version: int
    edge_rows: tuple[Tensor, ...] = ()
    """Attributes of the edges, as job.data has them."""
    inside: bool = False
    """The distributed model's forward is running."""
    recording: Recording | None = None
    """The proof that rows do not mix, while it runs."""
    with_gradients: bool = False
    """Gradients were enabled where the model was called."""
    sequence: list[int] = field(default_factory=list)
    """Numbers of the convolutions that the present forward has called, in their order."""

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
        """Whether the proof runs on some rows, with recorded outputs in place of the convolutions."""
        return self.recording is not None and self.recording.rows is not None

    def is_of_edges(self, value: Tensor) -> bool:
        """Whether a tensor is an attribute of the edges, which may be as many as the own nodes."""
        return any(value is rows for rows in self.edge_rows)

    def stored_features(self, x: Any) -> Tensor | None:
        """Input features of own and halo rows where `x` are those of the own rows, unchanged; else None."""
        if not _is(x, self.own_features) or x._version != self.features_version or x.requires_grad:
            return None
        rows = self.graph.tensors.features()
        return rows if isinstance(rows, torch.Tensor) and rows.dtype == x.dtype else None


def _is(x: Any, own: Tensor) -> bool:
    """Whether both are one tensor, or one is the detached other, as gradient checkpointing makes it."""
    if not isinstance(x, Tensor) or x.shape != own.shape or x.dtype != own.dtype:
        return False
    return x is own or (x.data_ptr() == own.data_ptr() and x.stride() == own.stride())
