"""Default programs for groups of which only the size is known."""

from __future__ import annotations

from functools import lru_cache

from wirewise.collective import Collective, Program
from wirewise.collective.builders import build

__all__ = ["default"]

_SMALL_BYTES = 65_536
"""Size up to which the number of steps counts, above it the bytes."""
_FEW_RANKS = 16
"""Ranks up to which every rank talks with all others at once."""
_CHAIN_BYTES, _SEGMENT_BYTES = 262_144, 1 << 20
"""Segments of chains, whose last rank waits for the first ones; and of other programs, which gain less by overlap than
messages cost: an all-reduce of 8 or 64 MB over four hosts of 1 Gbit/s in parts of 1 MiB is as quick as in those of 256
KiB, and takes 1.3 and not 1.6 times the processor time of gloo's."""
_MOST_SEGMENTS = 64


def default(collective: Collective, ranks: int, size_bytes: int, root: int = 0) -> Program:
    """Program for a uniform network.

    Args:
        collective: Name of the collective.
        ranks: Size of the group.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        root: Root of a rooted collective.
    """
    small = size_bytes <= _SMALL_BYTES
    whole = collective in ("broadcast", "reduce")
    chunk_bytes = size_bytes if whole else size_bytes // ranks
    # A power of two, so that few programs are made.
    wanted = max(1, min(chunk_bytes // (_CHAIN_BYTES if whole else _SEGMENT_BYTES), _MOST_SEGMENTS))
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
