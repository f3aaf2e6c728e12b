"""Signature by which a loss is recognised without walking its graph: operations, sizes and constants on one path."""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["common_gradient_sum", "record_output", "signs_of"]

_LONGEST = 24
"""Operations on the path; a longer one is walked in each step."""


class _OfThread(threading.local):
    """Gradient sums of the models whose outputs a thread computed; ranks may be threads of one process."""

    def __init__(self) -> None:
        self.sums: list[weakref.ref[Any]] = []


_of_thread = _OfThread()


def record_output(gradients: weakref.ref[Any]) -> None:
    """Record that this thread computed an output.

    Args:
        gradients: Gradient sum of the model.
    """
    if gradients not in _of_thread.sums:
        _of_thread.sums.append(gradients)


def common_gradient_sum() -> Any | None:
    """Gradient sum of all outputs from which this thread can have computed a loss. None if there are several."""
    sums = _of_thread.sums
    if len(sums) > 1:
        sums[:] = [held for held in sums if (one := held()) is not None and one.outputs()]
    only = sums[0]() if len(sums) == 1 else None
    return only if only is not None and only.opened else None


def signs_of(root: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Output at the end of the first path from a loss, and the path's signature. None if it ends elsewhere.

    Args:
        root: Node of the loss in the autograd graph.
    """
    node, above = root, None
    seen: list[Any] = []
    for _ in range(_LONGEST):
        output = getattr(node, "wirewise_output", None)
        try:
            if output is not None:
                # Rows that are read: those of train_mask.
                return output, (None if above is None else tuple(above._input_metadata[0].shape), *seen)
            name = node.name()
            seen.append((name, _detail(node, name)))
            above, node = node, None
            for below, _ in above.next_functions:
                if below is not None:
                    node = below
                    break
        except RuntimeError:
            # A second back-propagation through a graph whose saved values are gone.
            return None
        if node is None:
            return None
    return None


def _detail(node: Any, name: str) -> Any:
    """Reduction of a loss over classes and whether it weighs them; the constant of a product."""
    kind = name[:3]
    if kind == "Nll":
        return node._saved_reduction, node._saved_weight is None
    if kind in ("Mul", "Div"):
        other = getattr(node, "_saved_other", None)
        return other if isinstance(other, (int, float)) else None
    return None
