"""Loop records: which dimensions of an operator's tensors correspond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from wirewise.trace.operator_graph import OperatorNode

__all__ = ["Dims", "Label", "Loops", "Shapes", "operator_name", "spread"]

Label = int | str
Dims = tuple[Label | None, ...]
"""Loop of each dimension of a tensor. None for a dimension without a loop, such as a broadcast size of 1."""


@dataclass
class Loops:
    """Loops of an operator over the dimensions of its tensors."""

    inputs: list[Dims]
    outputs: list[Dims]
    closed: set[Label] = field(default_factory=set)
    """Loops that cannot be distributed over ranks."""
    whole: set[tuple[int, Label]] = field(default_factory=set)
    """Outputs that stay whole without the loop's dimension, unlike the others."""
    inner: dict[Label, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    """Collectives inside a loop that is distributed over ranks."""
    linear: Literal["none", "one", "all"] = "none"
    """Whether outputs are linear in each input alone, or in all inputs together."""
    looked_up: frozenset[Label] = frozenset({"v", "c"})
    """Loops over rows looked up by index, of which a rank must hold a contiguous range."""
    parts: dict[Label, int] = field(default_factory=dict)
    """Number of equal blocks that a closed loop consists of, each of which can be sharded."""


Shapes = Sequence[tuple[int, ...]]


def spread(shape: tuple[int, ...], target: tuple[int, ...]) -> Dims:
    """Loops of a tensor broadcast over another's dimensions, which are the loops."""
    offset = len(target) - len(shape)
    return tuple(
        d + offset if size == target[d + offset] and size > 1 else None for d, size in enumerate(shape)
    )


def operator_name(node: OperatorNode) -> str:
    """Name of an operator without its namespace and overload."""
    words = node.op.split(".")
    return words[1] if words[0] == "aten" and len(words) > 1 else node.op
