"""Proof that custom backward functions of the script treat each row's gradient independently.

Torch's own derivative of a row-wise function is row-wise. A `torch.autograd.Function` may do anything: divide by the
norm of the gradient, centre it. Gradients of a random half of the rows must therefore stay in these rows, and the
gradient of both halves must be the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from wirewise.integrations.pyg.loss_rows import is_linear

__all__ = ["backward_fault"]

_LIBRARIES = ("torch.", "torch_geometric.", "wirewise.")


def backward_fault(roots: Sequence[Tensor], rows: Sequence[Tensor], others: Sequence[Tensor]) -> str:
    """Reason why gradients of rows mix, or "" if they do not.

    Args:
        roots: Results with one row for each of some nodes.
        rows: Leaves with one row for each of these nodes.
        others: Leaves without rows, such as parameters.
    """
    roots = [root for root in roots if root.requires_grad]
    if not roots or not _has_own_functions(roots):
        return ""
    # By NumPy: while rows are proven torch draws constants.
    half = torch.from_numpy(np.random.default_rng(7).permutation(len(roots[0])) % 2 == 0)
    sent = [_gradients(roots, [*rows, *others], chosen) for chosen in (half, ~half, torch.ones_like(half))]
    for gradients, chosen in zip(sent, (half, ~half), strict=False):
        if any(g is not None and bool(g[~chosen].ne(0).any()) for g in gradients[: len(rows)]):
            return "has a function whose own backward mixes gradients of rows"
    return "" if is_linear(*sent) else "has a function whose own backward takes gradients of rows together"


def _gradients(roots: Sequence[Tensor], leaves: Sequence[Tensor], chosen: Tensor) -> list[Tensor | None]:
    generator = np.random.default_rng(5)
    noise = [torch.from_numpy(generator.standard_normal(tuple(root.shape))).to(root) for root in roots]
    sent = [one.masked_fill(~chosen.view(-1, *[1] * (one.dim() - 1)), 0.0) for one in noise]
    return list(torch.autograd.grad(roots, leaves, sent, retain_graph=True, allow_unused=True))


def _has_own_functions(roots: Iterable[Tensor]) -> bool:
    """Whether the graph holds a `torch.autograd.Function` of no library."""
    left = [root.grad_fn for root in roots]
    seen = set(left)
    while left:
        node = left.pop()
        if isinstance(node, BackwardCFunction) and not _is_of_library(node):
            return True
        below = {edge for edge, _ in node.next_functions if edge is not None} - seen  # type: ignore[union-attr]
        seen |= below
        left += below
    return False


def _is_of_library(node: BackwardCFunction) -> bool:
    function = getattr(node, "_forward_cls", type(node))
    return str(function.__module__).startswith(_LIBRARIES)
