"""Proof that the means of a plain loss read each own training row independently.

The gradient of a random half of a mean's rows must reach no output rows beyond these, and none that the other half
reaches: contrastive losses, a distance to the mean prediction and rows sampled with replacement fail. The gradient of
both halves must be the sum of their gradients: custom backward functions that divide by a norm fail. A check costs
three back-propagations through the loss alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

__all__ = ["is_linear", "rows_mix"]

_LINEAR = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Difference from a linear function that rounding explains, relative to the largest gradient; others are half types."""
Edges = list[tuple[Any, int]]


def rows_mix(edges: Edges, rows: int, outputs: list[Any], allowed: Tensor, seed: int) -> str:
    """Reason why rows mix, or "" if they do not.

    Args:
        edges: Inputs of one mean, each with `rows` rows in some layout.
        rows: Number of rows.
        outputs: Autograd nodes of the outputs of distributed models.
        allowed: Own rows that the gradients may reach, bool [own].
        seed: Key of the random half.
    """
    fault = ""
    for groups in _layouts(edges, rows):
        half = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.5
        every = torch.ones_like(half)
        try:
            sent = [_gradients(edges, groups, chosen, outputs) for chosen in (half, ~half, every)]
        except RuntimeError as error:
            return f"cannot be looked at by itself ({str(error).splitlines()[0][:120]})"
        fault = _compared([_touched(one, allowed) for one in sent[:2]], half, allowed)
        fault = fault or ("" if is_linear(*sent) else "has a backward of its own that takes rows together")
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
    """Index of the row of each element of the inputs: along a dimension, or flattened by rows or by columns."""
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


def _gradients(edges: Edges, groups: list[Tensor], chosen: Tensor, outputs: list[Any]) -> list[Tensor | None]:
    """Gradients of the outputs for a gradient of the chosen rows."""
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
    return [None if g is None else torch.nan_to_num(g) for g in gradients]


def _touched(gradients: list[Tensor | None], allowed: Tensor) -> Tensor:
    """Own rows of any output that gradients reach, bool [own]."""
    reached = torch.zeros_like(allowed)
    for gradient in gradients:
        if gradient is not None:
            rows = gradient.flatten(1 if gradient.dim() > 1 else 0).ne(0)
            reached |= rows.view(len(allowed), -1).any(1)
    return reached


def is_linear(first: list[Tensor | None], second: list[Tensor | None], both: list[Tensor | None]) -> bool:
    """Whether gradients are additive, up to the rounding of their dtype."""
    for one, other, total in zip(first, second, both, strict=True):
        if one is None or other is None or total is None:
            continue
        scale = float(total.abs().max()) + float(one.abs().max())
        if float((one + other - total).abs().max()) > _LINEAR.get(total.dtype, 3e-2) * scale:
            return False
    return True
