"""Layouts of tensors on a mesh, and the collectives that convert between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from wirewise.plans.parallel import DimPlacement, MoveKind, MoveStep

__all__ = ["PARTIAL", "REPLICATED", "Layout", "layout_steps", "share_of"]

Layout = tuple[DimPlacement, ...]
"""Placement along each dimension of a mesh."""

REPLICATED, PARTIAL = DimPlacement("R"), DimPlacement("P")


def share_of(layout: Layout, mesh: Sequence[int]) -> float:
    """Fraction of a tensor's elements on each rank."""
    return 1.0 / prod(size for one, size in zip(layout, mesh, strict=True) if one.kind == "S")


@cache
def layout_steps(
    source: Layout, target: Layout, size_bytes: float, mesh: tuple[int, ...]
) -> tuple[MoveStep, ...] | None:
    """Steps from one layout of a tensor to another. None if the target has partial sums that the source lacks.

    Shards are gathered from the last mesh dimension to the first, and split again in the opposite order: of two mesh
    dimensions that shard one tensor dimension, the first one splits first.

    Args:
        source: Layout before the conversion.
        target: Layout after the conversion.
        size_bytes: Size of the whole tensor, in bytes.
        mesh: Ranks along each dimension.
    """
    if any(b.kind == "P" and a.kind != "P" for a, b in zip(source, target, strict=True)):
        return None
    now, found = list(source), list[MoveStep]()

    def step(kind: MoveKind, axis: int, after: DimPlacement) -> None:
        local, n = size_bytes * share_of(tuple(now), mesh), mesh[axis]
        whole = local * n if kind == "all_gather" else local
        factor = {"all_reduce": 2 * (n - 1) / n, "slice": 0.0}.get(kind, (n - 1) / n)
        found.append(
            MoveStep(kind=kind, mesh_dim=axis, size_bytes=round(whole), sent_bytes=round(whole * factor))
        )
        now[axis] = after

    for axis in reversed(range(len(mesh))):
        before, after = now[axis], target[axis]
        if mesh[axis] == 1 or (before == after and not _unwinds(source, target, axis)):
            now[axis] = after if mesh[axis] == 1 else before
        elif before.kind == "R":
            continue
        elif before.kind == "P":
            direct = after.kind == "S" and _free(now, target, axis, after.dim)
            step("reduce_scatter" if direct else "all_reduce", axis, after if direct else REPLICATED)
        else:
            across = after.kind == "S" and before.dim != after.dim
            direct = across and _free(now, target, axis, after.dim)
            step("all_to_all" if direct else "all_gather", axis, after if direct else REPLICATED)
    for axis in range(len(mesh)):
        if now[axis] != target[axis]:
            step("slice", axis, target[axis])
    return tuple(found)


def _unwinds(source: Layout, target: Layout, axis: int) -> bool:
    """Whether an outer axis begins or ceases to cut the dimension that this one cuts."""
    own = source[axis]
    return own.kind == "S" and any(
        before != after and own.dim in (before.dim, after.dim)
        for before, after in zip(source[:axis], target[:axis], strict=True)
    )


def _free(now: Sequence[DimPlacement], target: Layout, axis: int, dim: int) -> bool:
    """Whether this axis may cut a dimension at once: no inner one cuts it, and no outer one has still to."""
    inner = any(one.kind == "S" and one.dim == dim for one in now[axis + 1 :])
    outer = any(
        before != after and dim in (before.dim if before.kind == "S" else -1, after.dim)
        for before, after in zip(now[:axis], target[:axis], strict=True)
    )
    return not inner and not outer
