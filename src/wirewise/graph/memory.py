"""How much memory a rank needs for its part: the formula that measured peaks are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.graph.part import Part

__all__ = ["part_memory_bytes"]


def part_memory_bytes(part: Part, widths: Sequence[tuple[int, int]], *, value_bytes: int = 4) -> int:
    r"""Bytes that full-graph training on one part must hold at once.

    .. math::

        M = M_{part} + v \sum_{l} (n_{own} \, w_l + n_{halo} \, h_l)

    with the arrays of the part :math:`M_{part}` (structure, degrees, labels, features of own and halo rows),
    and, for each layer l, :math:`w_l` values kept for each own row until the backward pass and :math:`h_l`
    for each halo row, of :math:`v` bytes each.

    Args:
        part: The part.
        widths: For each layer, (values per own row, values per halo row). A layer that keeps its input, its
            aggregate and its output of width 64 and receives halo rows of width 64 gives (192, 64).
        value_bytes: Bytes of one activation.
    """
    activations = sum(part.num_own * own + part.num_halo * halo for own, halo in widths)
    return part.nbytes + value_bytes * activations
