"""Exact sums and halo rows of small tensors, forward and backward, independent of the halo exchange's mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirewise.graph import Part
from wirewise.runtime import full_graph

__all__ = ["halo_values", "sum_over_ranks"]

_TAG = 1 << 24
"""Above the tags of the lanes."""


def sum_over_ranks(value: Tensor, transport: full_graph.Transport, label: str) -> Tensor:
    """Sum `value` over all ranks, with the gradients of every rank summed in backward; a collective call in both."""
    return _Sum.apply(value, transport, label)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, transport: full_graph.Transport, label: str) -> Tensor:
        ctx.transport, ctx.what = transport, label
        out = value.detach().clone(memory_format=torch.contiguous_format)
        transport.all_reduce(out, label)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        ctx.transport.all_reduce(grad, f"gradient of {ctx.what}")
        return grad, None, None


def halo_values(own: Tensor, part: Part, transport: full_graph.Transport) -> Tensor:
    """Values of the halo nodes, [halo], from those of the own nodes, [own], unquantized; a collective call."""
    return _Halo.apply(own, part, transport)


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, part: Part, transport: full_graph.Transport) -> Tensor:
        ctx.part, ctx.transport = part, transport
        sends = {p: own.detach()[_sent(part, p)].contiguous() for p in transport.peers}
        halo = own.new_empty(part.num_halo)
        transport.exchange(
            "values of halo nodes", _TAG, sends, {p: _of(halo, part, p) for p in transport.peers}
        )
        return halo

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        part, transport = ctx.part, ctx.transport
        sends = {p: _of(grad.contiguous(), part, p) for p in transport.peers}
        receives = {p: grad.new_empty(len(_sent(part, p))) for p in transport.peers}
        transport.exchange("gradients of values of halo nodes", _TAG + 1, sends, receives)
        out = grad.new_zeros(part.num_own)
        for peer, rows in sorted(receives.items()):
            out.index_add_(0, _sent(part, peer), rows)
        return out, None, None


def _sent(part: Part, peer: int) -> Tensor:
    rows = part.send_index[part.send_offsets[peer] : part.send_offsets[peer + 1]]
    return torch.from_numpy(rows.astype(np.int64))


def _of(halo: Tensor, part: Part, peer: int) -> Tensor:
    return halo[int(part.halo_offsets[peer]) : int(part.halo_offsets[peer + 1])]
