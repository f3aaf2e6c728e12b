"""The reducer of gradients of full-graph training: buckets by size, while halo rows and other sums travel as well."""

from __future__ import annotations

import torch
from torch import nn

from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.reducer import Reducer, Scale
from wirewise.runtime.transport import Transport

__all__ = ["gradient_reducer"]

_BUCKET_BYTES = 1 << 18
"""Models of graphs are small: larger buckets would leave nothing that travels behind back-propagation."""


def gradient_reducer(
    model: nn.Module, transport: Transport, *, scale: Scale = "sum", bits: int = 32
) -> Reducer:
    """A reducer of the back-propagations that are announced by `begin`, in buckets of 256 KiB from the last layer on.

    Args:
        model: Model whose gradients are summed.
        transport: Transport between the ranks.
        scale: Parts of a loss over the whole graph are summed.
        bits: 32: gradients travel as they are. 16: those of float32 are rounded to bfloat16, sent and summed so.
    """
    trained = [(name, p.nbytes) for name, p in model.named_parameters() if p.requires_grad]
    plan = FusionPlan.by_size(dict(reversed(trained)), transport.world_size, _BUCKET_BYTES)
    wire = torch.bfloat16 if bits == 16 else None
    return Reducer(model, plan, transport, until="finish", scale=scale, wire=wire)
