"""Mini-batch as input of a training step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from wirewise.graph.sampling import Batch

__all__ = ["STAGES", "MiniBatch"]

STAGES = ("sample", "ids", "slice", "rows", "assemble")


@dataclass
class MiniBatch:
    """Seeds with their sampled neighbourhood and its rows."""

    number: int
    """Number of the batch in the epoch."""
    batch: Batch
    x: Float[Tensor, "n f"]
    """Rows of `n_id`."""
    y: Tensor
    """Labels of the seeds."""
    scale: float
    """Factor for the sum of the seeds' losses, such that the mean over machines is the mean over all seeds of the
    batch: `cross_entropy(out, batch.y, reduction="sum") * batch.scale`."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""
    remote_rows: int = 0
    """Number of fetched rows."""
    copied: torch.cuda.Event | None = None
    """Event after its rows were copied to a device."""
    foreign_rows: int = 0
    """Rows of other machines' nodes, fetched or cached."""

    @property
    def n_id(self) -> NDArray[np.int64]:
        """Global ids of the rows, the seeds first."""
        return self.batch.n_id

    def arrive(self) -> MiniBatch:
        """Make later work on the current stream wait until the rows are on the device."""
        if self.copied is not None:
            stream = torch.cuda.current_stream(self.x.device)
            stream.wait_event(self.copied)
            self.x.record_stream(stream)
        return self

    @property
    def layers(self) -> list[tuple[Int[Tensor, "2 e"], tuple[int, int]]]:
        """Edges and size of each convolution, from the outermost inwards, in PyG's format."""
        return [(torch.from_numpy(layer.edge_index()), layer.size) for layer in self.batch.layers]
