"""Sufficient factors: ranks exchange the inputs and output gradients of a linear layer in place of its gradient.

The gradient of a weight is a product over the rows of the batch, so every rank that has the factors of all rows has
the gradient (P. Xie et al., UAI 2016). Fewer bytes where a rank has few rows: rows (ranks - 1) (inputs + outputs)
against 2 (ranks - 1) / ranks inputs outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.runtime.transport import Transport

__all__ = ["FactorExchange", "factors_are_smaller"]


def factors_are_smaller(rows: int, inputs: int, outputs: int, ranks: int) -> bool:
    """Whether factors have fewer bytes than an all-reduce of the weight's gradient.

    Args:
        rows: Rows of a rank, counting all positions of a sample.
        inputs: Width of the layer's input.
        outputs: Width of the layer's output.
        ranks: Number of ranks with the layer.
    """
    return rows * ranks * (inputs + outputs) < 2 * inputs * outputs


class FactorExchange:
    """Gradients of linear layers computed from the factors of all ranks.

    The layers compute as before, but their weights get no gradient in the backward pass; `exchange` gathers the
    factors of every rank, and `multiply` computes the gradient from them. A layer may be called once in a step.

    Args:
        layers: Linear layers by name.
        shares: Batch rows on each rank of the group.
        group: Ranks that have the layers and exchange factors in a ring.
        tag: Tag of the exchange, unique in the group.
        label: Name of the exchange for error messages.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Linear],
        shares: Sequence[int],
        group: Transport,
        tag: int,
        label: str,
    ) -> None:
        self._layers, self._shares, self._group = dict(layers), tuple(shares), group
        self._tag, self._what = tag, label
        self._factors: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._everyone: list[list[Tensor]] = []
        """Factors of each rank of the group."""
        self.bytes_sent = 0
        for name, layer in self._layers.items():
            layer.forward = self._forward(name, layer)  # type: ignore[method-assign]

    def begin(self) -> None:
        """Drop the factors of the previous step."""
        self._factors = {name: [] for name in self._layers}

    def exchange(self) -> None:
        """Exchange the factors of all ranks.

        Raises:
            InputError: A layer was called more than once, or not at all.
            PeerError: A peer is gone.
        """
        own = [factor for name in self._layers for factor in self._one(name)]
        kinds = {factor.dtype for factor in own}
        if len(kinds) > 1:
            raise InputError(
                f"factors of {self._what} have the types {sorted(map(str, kinds))}; expected one"
            )
        group, count = self._group, len(self._shares)
        rank, rows = group.rank, self._shares[group.rank]
        sizes = [[one.numel() // rows * share for one in own] for share in self._shares]
        flat = [own[0].new_empty(sum(parts)) for parts in sizes]
        torch.cat([one.reshape(-1) for one in own], out=flat[rank])
        for turn in range(count - 1):
            sent, received = flat[(rank - turn) % count], flat[(rank - turn - 1) % count]
            group.exchange(self._what, self._tag, {(rank + 1) % count: sent}, {(rank - 1) % count: received})
            self.bytes_sent += sent.nbytes
        self._everyone = [
            [part.view(-1, one.shape[1]) for part, one in zip(all_.split(parts), own, strict=True)]
            for all_, parts in zip(flat, sizes, strict=True)
        ]

    def multiply(self) -> None:
        """Compute the gradients from the exchanged factors."""
        for number, layer in enumerate(self._layers.values()):
            x, delta = (torch.cat([one[2 * number + side] for one in self._everyone]) for side in (0, 1))
            layer.weight.grad = delta.t() @ x
            if layer.bias is not None:
                layer.bias.grad = delta.sum(0)
        self._everyone = []

    def close(self) -> None:
        """Restore the layers' own forward pass."""
        for layer in self._layers.values():
            layer.__dict__.pop("forward", None)

    def _one(self, name: str) -> tuple[Tensor, Tensor]:
        found = self._factors[name]
        if len(found) != 1:
            raise InputError(
                f"linear layer {name!r} has {len(found)} backward passes in a step; expected one, as its gradient is "
                "made of the factors of one: take all-reduce for this layer"
            )
        return found[0]

    def _forward(self, name: str, layer: nn.Linear) -> Any:
        function: Any = _FactorLinear

        def forward(x: Tensor) -> Tensor:
            found: Tensor = function.apply(x, layer.weight, layer.bias, self._factors.setdefault(name, []))
            return found

        return forward


class _FactorLinear(torch.autograd.Function):
    """A linear layer whose backward pass keeps the factors of the weight's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, factors: list[Any]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.factors = factors
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = (x.reshape(-1, x.shape[-1]).detach(), gradient.reshape(-1, gradient.shape[-1]).detach())
        ctx.factors.append(rows)
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, None
