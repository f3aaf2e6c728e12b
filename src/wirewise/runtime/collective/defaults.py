"""Programs for groups of which nothing is known but their size."""

from __future__ import annotations

from functools import lru_cache

from wirewise.collective import Collective, Program
from wirewise.collective.builders import build

__all__ = ["default"]

_SMALL_BYTES = 65_536
"""Size up to which the number of steps counts, above it the bytes."""
_FEW_RANKS = 16
"""Ranks up to which every rank talks with all others at once."""
_SEGMENT_BYTES = 262_144
_MOST_SEGMENTS = 64


def default(collective: Collective, ranks: int, size_bytes: int, root: int = 0) -> Program:
    """A program that is good on a network whose ranks are all alike.

    Args:
        collective: Name of the collective.
        ranks: Size of the group.
        size_bytes: The larger buffer of a rank, in or out.
        root: Root of a rooted collective.
    """
    small = size_bytes <= _SMALL_BYTES
    whole = collective in ("broadcast", "reduce")
    chunk_bytes = size_bytes if whole else size_bytes // ranks
    # A power of two, so that few programs are made.
    wanted = max(1, min(chunk_bytes // _SEGMENT_BYTES, _MOST_SEGMENTS))
    return _made(collective, ranks, small, 1 << (wanted.bit_length() - 1), root)


@lru_cache(maxsize=256)
def _made(collective: Collective, ranks: int, small: bool, segments: int, root: int) -> Program:
    few = ranks <= _FEW_RANKS
    names: dict[Collective, tuple[str, str]] = {
        "broadcast": ("binomial", "chain"),
        "reduce": ("binomial", "chain"),
        "scatter": ("flat", "flat"),
        "gather": ("flat", "flat"),
        "all_gather": ("bruck", "direct" if few else "ring"),
        "reduce_scatter": ("pairwise", "pairwise" if few else "ring"),
        "all_reduce": ("recursive_doubling", "direct" if few else "ring"),
        "all_to_all": ("linear", "linear"),
    }
    return build(collective, names[collective][not small], ranks, root=root, segments=segments)
