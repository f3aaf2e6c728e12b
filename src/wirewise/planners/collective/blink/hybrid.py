"""Split of data over channels of different bandwidth so that all finish at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wirewise.errors import InputError

__all__ = ["Channel", "equal_finish"]


class Channel(NamedTuple):
    """Channel for a part of the data, such as NVLink or PCIe."""

    bandwidth_bytes_per_s: float
    start_s: float = 0.0
    """Setup time before its first byte, such as to switch peer access between kinds of links."""


def equal_finish(size_bytes: float, channels: Sequence[Channel]) -> list[float]:
    """Bytes for each channel; 0 if a channel would start only after the others have finished.

    Blink (Wang et al., MLSys 2020) for NVLink and PCIe, here for any number: all used channels end at
    (size + sum of bandwidth * start) / sum of bandwidth.

    Raises:
        InputError: There is no channel, a bandwidth is not positive, or a time or size is negative.
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
