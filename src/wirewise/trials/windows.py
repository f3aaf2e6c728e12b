"""Interleaving of variants in measurement windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["alternate"]


def alternate(names: Sequence[str], windows: int) -> Iterator[tuple[int, str]]:
    """Interleave variants in the order ABBA, which cancels slow drift; yields (index of window, name).

    Args:
        names: Names of the variants.
        windows: Number of windows of each.
    """
    for number in range(windows):
        for name in names[::-1] if number % 2 else names:
            yield number, name
