"""Encode and decode the rows that ranks exchange: tensors in, bytes out, no process groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirewise.codec.layout import BITS, MessageLayout, row_bytes

if TYPE_CHECKING:
    from wirewise.codec.quantize import IMPLEMENTATIONS, pack, unpack, unpack_add, unpack_aggregate, warm

__all__ = [
    "BITS",
    "IMPLEMENTATIONS",
    "MessageLayout",
    "pack",
    "row_bytes",
    "unpack",
    "unpack_add",
    "unpack_aggregate",
    "warm",
]


def __getattr__(name: str) -> Any:
    # Planners need BITS and the byte counts only, and those need no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wirewise.codec import quantize

    return getattr(quantize, name)
