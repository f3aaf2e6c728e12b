"""Kernel parameters of link shaping: limits, and token-bucket sizes."""

from __future__ import annotations

from wirewise.errors import LabError

__all__ = ["bucket", "burst_bytes", "checked"]

_QUEUE_LATENCY = "50ms"
"""Longest time that a packet waits for tokens before it is dropped: the depth of the queue."""
_BURST_S = 0.001
_MIN_BURST = 4_096
"""A bucket's size in seconds of its rate, and its least bytes. Whatever fits into the bucket passes unshaped
after a pause, so a large one falsifies short transfers: measured at 200 Mbit/s, 100 kB after a pause reach
1.17 of the rate with a bucket of 1 ms and 7 to 12 of it with one of 10 ms; 25 MB reach 0.95 with either."""

_MAX_RATE = 4e12
"""Bytes per second whose bucket of `_BURST_S` still fits into the 32 bits that the kernel keeps for it."""


def checked(bytes_per_s: float, label: str) -> float:
    """Return a rate if the kernel can shape it.

    Args:
        bytes_per_s: Rate in bytes per second.
        label: Subject of the error message.

    Raises:
        LabError: The kernel cannot shape the rate.
    """
    if not 1 <= bytes_per_s <= _MAX_RATE:
        raise LabError(
            f"{label} has {bytes_per_s:g} bytes per second; expected 1 to {_MAX_RATE:g}, which is what the kernel can "
            "shape"
        )
    return bytes_per_s


def burst_bytes(bytes_per_s: float) -> int:
    """Token-bucket size for a rate, in bytes."""
    return max(_MIN_BURST, int(bytes_per_s * _BURST_S))


def bucket(bytes_per_s: float) -> list[str]:
    """Arguments of `tc qdisc` that shape an interface's outgoing traffic."""
    rate, burst = round(bytes_per_s * 8), burst_bytes(bytes_per_s)
    return f"tbf rate {rate}bit burst {burst}b latency {_QUEUE_LATENCY}".split()
