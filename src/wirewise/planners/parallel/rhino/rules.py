"""Sharding strategies of operators along one mesh dimension, derived from loops over tensor dimensions.

Views are described by the blocks of elements that a sharding creates; a shard inside a merged dimension is therefore a
strided one, and vice versa.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from wirewise.planners.parallel.rhino.layouts import PARTIAL, REPLICATED
from wirewise.planners.parallel.rhino.loop_records import Dims, Label, Loops, Shapes, operator_name
from wirewise.planners.parallel.rhino.loops import VIEWS, linear_in, loops_of
from wirewise.plans.parallel import DimPlacement
from wirewise.trace.operator_graph import OperatorNode

__all__ = ["Strategy", "strategies", "view_cuts"]


class Strategy(NamedTuple):
    """Strategy for sharding an operator along a mesh dimension."""

    inputs: tuple[DimPlacement, ...]
    outputs: tuple[DimPlacement, ...]
    """Placement of each output."""
    share: bool
    """Whether each rank does a fraction of the work instead of all of it."""
    inner: tuple[tuple[str, float], ...] = ()
    """Collectives inside the operator, with the bytes of the tensor."""


def view_cuts(
    before: Sequence[int],
    after: Sequence[int],
    cuts: Iterable[DimPlacement],
    backwards: Iterable[DimPlacement],
    n: int,
) -> Iterator[tuple[DimPlacement, DimPlacement]]:
    """Shardings of a tensor before and after a view that leave each rank the same elements.

    Args:
        before: Shape of the input.
        after: Shape of the output.
        cuts: Shardings of the input to consider.
        backwards: Shardings of the output to consider.
        n: Number of shards.
    """
    seen = set()
    both = [(before, after, cut, False) for cut in cuts]
    both += [(after, before, cut, True) for cut in backwards]
    for here, there, own, turned in both:
        if here[own.dim] % (own.factor * n):
            continue
        # Blocks of elements of which a rank has one part each; a cut of another shape has to make the same.
        blocks = prod(here[: own.dim]) * own.factor
        outer = 1
        for dim, size in enumerate(there):
            if blocks % outer == 0 and size % (blocks // outer * n) == 0:
                found = DimPlacement("S", dim, blocks // outer)
                pair = (found, own) if turned else (own, found)
                if pair not in seen:
                    seen.add(pair)
                    yield pair
                break
            outer *= size


def strategies(
    node: OperatorNode,
    shapes: Shapes,
    n: int,
    *,
    factors: Callable[[bool, int, int], Iterable[int]] = lambda output, number, dim: (),
    strided: bool = True,
    sums: bool = False,
) -> list[Strategy] | None:
    """Strategies of an operator along a mesh dimension, the replicated one first. None if it has no rule.

    Args:
        node: Operator to shard.
        shapes: Shapes of its inputs.
        n: Ranks along the dimension.
        factors: Block counts of strided shards, by `(whether of an output, its index, dimension)`.
        strided: Whether to allow strided shards.
        sums: Whether partial sums may propagate through operators linear in some inputs. Ranks can reduce earlier at
            no more cost; microbatches cannot.
    """
    count = max(len(node.parts), 1)
    found = [Strategy((REPLICATED,) * len(shapes), (REPLICATED,) * count, share=False)]
    if operator_name(node) in VIEWS:
        before, after = shapes[0], node.shape
        every = [
            [DimPlacement("S", d, f) for d in range(len(shape)) for f in {1, *factors(side, 0, d)}]
            for side, shape in ((False, before), (True, after))
        ]
        found.append(Strategy((PARTIAL,), (PARTIAL,), share=False))
        for cut, cut_after in view_cuts(before, after, every[0], every[1], n):
            if strided or cut.factor == cut_after.factor == 1:
                found.append(Strategy((cut,), (cut_after,), share=True))
        return found
    loops = loops_of(node, shapes)
    if loops is None:
        return None
    outputs = node.parts or (node.shape,)
    labels = dict.fromkeys(
        label for dims in (*loops.inputs, *loops.outputs) for label in dims if label is not None
    )
    for label in labels:
        if label in loops.closed and label not in loops.parts:
            continue
        blocks = {1}
        if strided and label not in loops.looked_up:
            blocks |= {
                f
                for side, every in ((False, loops.inputs), (True, loops.outputs))
                for number, dims in enumerate(every)
                for d, one in enumerate(dims)
                if one == label
                for f in factors(side, number, d)
            }
        for f in sorted(blocks):
            found += _dealt(loops, label, f, n, shapes, outputs, strided=strided)
    if loops.linear == "all" and (shapes or not loops.closed):
        found.append(Strategy((PARTIAL,) * len(shapes), (PARTIAL,) * count, share=False))
    elif loops.linear == "one":
        for number in range(len(shapes)):
            if operator_name(node) == "div" and number:
                continue
            given = tuple(PARTIAL if i == number else REPLICATED for i in range(len(shapes)))
            found.append(Strategy(given, (PARTIAL,) * count, share=False))
    elif sums and (linear := linear_in(node)):
        given = tuple(PARTIAL if role in linear else REPLICATED for role in node.roles)
        found.append(Strategy(given, (PARTIAL,) * count, share=False))
    return found


def _dealt(
    loops: Loops,
    label: Label,
    factor: int,
    n: int,
    shapes: Shapes,
    outputs: Shapes,
    *,
    strided: bool,
) -> list[Strategy]:
    """The strategy that deals a loop out; none where sizes are uneven."""
    inside = loops.parts.get(label, 1)
    if inside > 1 and (factor > 1 or not strided):
        return []
    # Of a dimension that is cut into equal parts, or joined of them, the longer side is cut block by block.
    longest = max(
        (shape[d] for dims, shape in zip((*loops.inputs, *loops.outputs), (*shapes, *outputs), strict=True)
         for d, one in enumerate(dims) if one == label), default=0,
    )  # fmt: skip

    def placed(dims: Dims, shape: tuple[int, ...], missing: DimPlacement) -> DimPlacement | None:
        if label not in dims:
            return missing
        d = dims.index(label)
        own = inside if inside > 1 and shape[d] == longest else factor
        return DimPlacement("S", d, own) if shape[d] > 0 and shape[d] % (own * n) == 0 else None

    inputs = [placed(dims, shape, REPLICATED) for dims, shape in zip(loops.inputs, shapes, strict=True)]
    made = [
        placed(dims, shape, REPLICATED if (number, label) in loops.whole else PARTIAL)
        for number, (dims, shape) in enumerate(zip(loops.outputs, outputs, strict=True))
    ]
    if any(one is None for one in (*inputs, *made)):
        return []
    return [
        Strategy(
            tuple(one for one in inputs if one),
            tuple(one for one in made if one),
            share=True,
            inner=loops.inner.get(label, ()),
        )
    ]
