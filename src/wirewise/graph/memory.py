"""Memory model of a rank's part, validated against measured peaks."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.graph.part import Part

__all__ = ["part_memory_bytes"]


def part_memory_bytes(part: Part, widths: Sequence[tuple[int, int, int]], *, value_bytes: int = 4) -> int:
    r"""Bytes of one part, and of the activations of full-graph training on it at its peak.

    .. math::

        M = M_{part} + v \sum_{l} (n_{own} \, w_l + n_{marginal} \, m_l + n_{halo} \, h_l)

    with the arrays of the part :math:`M_{part}` (structure, degrees, labels, features of own and halo rows),
    and, for each layer l, :math:`w_l` values for each own row, :math:`m_l` for each own row with an in-neighbour
    elsewhere and :math:`h_l` for each halo row, of :math:`v` bytes each.

    Args:
        part: Part of one rank.
        widths: Values per own row, marginal row and halo row, for each layer. A layer of width 64 that keeps the
            aggregated inputs, those of marginal rows once more, and its output, and computes gradients of halo rows,
            gives (128, 64, 64).
        value_bytes: Bytes of one activation.
    """
    marginal = part.num_own - part.num_central
    values = sum(part.num_own * w + marginal * m + part.num_halo * h for w, m, h in widths)
    return part.nbytes + value_bytes * values
