"""Memory access patterns of the operators of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from wirewise.trace.operators import MemoryLayout

__all__ = ["TensorLayout", "layout_of", "node_layout"]


class TensorLayout(NamedTuple):
    """Sizes, strides and element size of a tensor, in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int


def node_layout(node: fx.Node) -> MemoryLayout:
    """Layout of an operator of a captured graph."""
    return layout_of(_shapes(node), [shape for read in node.all_input_nodes for shape in _shapes(read)])


def _shapes(node: fx.Node) -> list[TensorLayout]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return [
        TensorLayout(tuple(v.shape), tuple(v.stride()), v.element_size())
        for v in leaves
        if isinstance(v, Tensor)
    ]


def layout_of(written: Sequence[TensorLayout], reads: Sequence[TensorLayout]) -> MemoryLayout:
    """Layout of an operator's output and inputs."""
    if not written:
        return MemoryLayout()
    result = written[0]
    largest = max((*reads, result), key=lambda one: prod(one.sizes))
    reduces = prod(largest.sizes) > prod(result.sizes)
    walked = largest if reduces else result
    inner = _inner(walked)
    return MemoryLayout(
        inner=walked.sizes[inner] if walked.sizes else 1,
        reduced=max(1, prod(largest.sizes) // max(prod(result.sizes), 1)),
        reduces_inner=reduces and _gone(largest, result, inner),
        strided=sum(_step(one, walked, inner) > 1 for one in reads),
        repeated=sum(prod(one.sizes) < prod(walked.sizes) for one in reads),
        least_bytes=min(one.element_bytes for one in (*reads, *written)),
        most_bytes=max(one.element_bytes for one in (*reads, *written)),
    )


def _inner(shape: TensorLayout) -> int:
    """The dimension whose neighbours lie nearest to each other."""
    steps = [
        (step, -d)
        for d, (size, step) in enumerate(zip(shape.sizes, shape.strides, strict=True))
        if size > 1 and step
    ]
    return -min(steps)[1] if steps else len(shape.sizes) - 1


def _gone(read: TensorLayout, written: TensorLayout, dimension: int) -> bool:
    """Whether a reduction leaves nothing of a dimension; of equally long ones it is taken to leave this one."""
    if len(read.sizes) == len(written.sizes):
        return written.sizes[dimension] == 1
    length, before, after = read.sizes[dimension], read.sizes[:dimension], read.sizes[dimension + 1 :]
    left = written.sizes
    return not any(
        left[i] == length and _within(left[:i], before) and _within(left[i + 1 :], after)
        for i in range(len(left))
    )


def _within(some: tuple[int, ...], all_of: tuple[int, ...]) -> bool:
    """Whether some lengths stand among others in this order: `in` takes the iterator on to where it found one."""
    rest = iter(all_of)
    return all(one in rest for one in some)


def _step(read: TensorLayout, walked: TensorLayout, inner: int) -> int:
    """Elements between neighbours of the walk in one that is read."""
    d = inner - len(walked.sizes) + len(read.sizes)
    return (
        read.strides[d] if 0 <= d and d < len(read.sizes) and read.sizes[d] == walked.sizes[inner] > 1 else 0
    )
