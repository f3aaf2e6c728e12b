"""Data divided over channels of different speed so that all end at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wirewise.errors import InputError

__all__ = ["Channel", "equal_finish"]


class Channel(NamedTuple):
    """A way for a part of the data, such as NVLink or PCIe."""

    bandwidth_bytes_per_s: float
    start_s: float = 0.0
    """Time before its first byte, such as that of switching peer access from one kind of link to the other."""


def equal_finish(size_bytes: float, channels: Sequence[Channel]) -> list[float]:
    """Bytes for each channel; 0 where a channel would start only after the others have ended.

    Blink (Wang et al., MLSys 2020) for NVLink and PCIe, here for any number: all used channels end at
    (size + sum of bandwidth * start) / sum of bandwidth.

    Raises:
        InputError: No channel, a bandwidth that is not above 0, or a time or size below 0.
    """
    if not channels or any(c.bandwidth_bytes_per_s <= 0 or c.start_s < 0 for c in channels) or size_bytes < 0:
        raise InputError(
            f"got {size_bytes} bytes for {list(channels)}; expected a size of at least 0 and channels with a "
            "bandwidth above 0 and a start of at least 0"
        )
    used: list[Channel] = []
    for channel in sorted(channels, key=lambda c: c.start_s):
        if used and channel.start_s >= _end(size_bytes, used):
            break
        used.append(channel)
    end = _end(size_bytes, used)
    return [c.bandwidth_bytes_per_s * max(0.0, end - c.start_s) if c in used else 0.0 for c in channels]


def _end(size_bytes: float, used: Sequence[Channel]) -> float:
    waits = sum(c.bandwidth_bytes_per_s * c.start_s for c in used)
    return (size_bytes + waits) / sum(c.bandwidth_bytes_per_s for c in used)
