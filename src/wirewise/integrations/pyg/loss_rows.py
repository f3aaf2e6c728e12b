"""Proof that the means of a plain loss read each own training row by itself.

The gradient of a random half of a mean's rows must reach no more output rows than these, and none that the other half
reaches: contrastive losses, a distance to the mean prediction and rows sampled with replacement fail. A check costs two
back-propagations through the loss alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

__all__ = ["rows_mix"]

Edges = list[tuple[Any, int]]


def rows_mix(edges: Edges, rows: int, outputs: list[Any], allowed: Tensor, seed: int) -> str:
    """The reason for which rows mix, or "".

    Args:
        edges: Inputs of one mean, each with `rows` rows in some layout.
        rows: Number of rows.
        outputs: Nodes of the outputs of distributed models.
        allowed: Own rows that they may reach, bool [own].
        seed: Key of the random half.
    """
    fault = ""
    for groups in _layouts(edges, rows):
        half = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.5
        try:
            reached = [_reached(edges, groups, chosen, outputs, allowed) for chosen in (half, ~half)]
        except RuntimeError as error:
            return f"cannot be looked at by itself ({str(error).splitlines()[0][:120]})"
        fault = _compared(reached, half, allowed)
        if not fault:
            return ""
    return fault or "reads rows in a layout that is not known"


def _compared(reached: list[Tensor], half: Tensor, allowed: Tensor) -> str:
    if bool(((reached[0] | reached[1]) & ~allowed).any()):
        return "reads outputs of nodes outside train_mask"
    if bool((reached[0] & reached[1]).any()):
        return "has a value that depends on several rows, or reads a row several times"
    counts = int(half.sum()), int((~half).sum())
    if any(int(rows.sum()) > count for rows, count in zip(reached, counts, strict=True)):
        return "has a value that depends on several rows"
    return ""


def _layouts(edges: Edges, rows: int) -> Iterator[list[Tensor]]:
    """Number of the row of each element of the inputs: along a dimension, or flattened by rows or by columns."""
    shapes = [tuple(node._input_metadata[place].shape) for node, place in edges]
    for of in (_along, _by_rows, _by_columns):
        groups = [of(shape, rows) for shape in shapes]
        if all(g is not None for g in groups):
            yield groups  # type: ignore[misc]


def _along(shape: tuple[int, ...], rows: int) -> Tensor | None:
    if rows not in shape:
        return None
    place = shape.index(rows)
    view = [rows if d == place else 1 for d in range(len(shape))]
    return torch.arange(rows).view(view).expand(shape)


def _by_rows(shape: tuple[int, ...], rows: int) -> Tensor | None:
    size = torch.Size(shape).numel()
    return None if size % rows else torch.arange(size).div(size // rows, rounding_mode="floor").view(shape)


def _by_columns(shape: tuple[int, ...], rows: int) -> Tensor | None:
    size = torch.Size(shape).numel()
    return None if size % rows else torch.arange(size).remainder(rows).view(shape)


def _reached(
    edges: Edges, groups: list[Tensor], chosen: Tensor, outputs: list[Any], allowed: Tensor
) -> Tensor:
    """Own rows of any output that a gradient of the chosen rows reaches, bool [own]."""
    generator = torch.Generator().manual_seed(5)
    sent = []
    for (node, place), group in zip(edges, groups, strict=True):
        meta = node._input_metadata[place]
        noise = torch.randn(group.shape, generator=generator).masked_fill(~chosen[group], 0.0)
        sent.append(noise.to(device=meta.device, dtype=meta.dtype))
    gradients = torch.autograd.grad(
        [GradientEdge(node, place) for node, place in edges],
        [GradientEdge(node, 0) for node in outputs],
        sent,
        retain_graph=True,
        allow_unused=True,
    )
    reached = torch.zeros_like(allowed)
    for gradient in gradients:
        if gradient is not None:
            reached |= (
                torch.nan_to_num(gradient)
                .flatten(1 if gradient.dim() > 1 else 0)
                .ne(0)
                .view(len(allowed), -1)
                .any(1)
            )
    return reached
