"""Windows of measurement that variants take in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["turns"]


def turns(names: Sequence[str], windows: int) -> Iterator[tuple[int, str]]:
    """Number of the window and name of the variant, in the order ABBA, which cancels a slow drift of the machine.

    Args:
        names: Names of the variants.
        windows: Number of windows of each.
    """
    for number in range(windows):
        for name in names[::-1] if number % 2 else names:
            yield number, name
