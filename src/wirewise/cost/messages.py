"""What messages between two ranks tell of the links, beside each other as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.transfers import TransferSample
from wirewise.trace.match import Match

__all__ = ["message_samples"]

Vector = NDArray[np.float64]


def message_samples(
    matches: Sequence[Match], hosts: NDArray[np.int32]
) -> tuple[list[TransferSample], list[TransferSample]]:
    """Messages between hosts, and messages inside of a host, each as if it had been alone on the links.

    Of every moment a message gets its share of the interface that carries the most messages then, so its seconds
    alone are the sum of its shares.

    Args:
        matches: Of any collectives; messages are taken.
        hosts: Host of each rank, [ranks].
    """
    found = [one for one in matches if one.collective == "send" and one.step >= 0 and one.size_bytes > 0]
    if not found:
        return [], []
    ends = [(int(hosts[one.ranks[0]]), int(hosts[one.ranks[1]])) for one in found]
    seconds = _alone(found, ends)
    samples: tuple[list[TransferSample], list[TransferSample]] = ([], [])
    for one, (source, target), alone in zip(found, ends, seconds, strict=True):
        sample = TransferSample(one.end_s - alone, one.end_s, one.size_bytes, 1, "send", alone=True)
        samples[source == target].append(sample)
    return samples


def _alone(found: Sequence[Match], ends: Sequence[tuple[int, int]]) -> list[float]:
    """Seconds of each message, shared out."""
    count = 1 + max(max(pair) for pair in ends)
    begin, until = np.array([one.start_s for one in found]), np.array([one.end_s for one in found])
    times = np.unique(np.concatenate([begin, until]))
    first, last = np.searchsorted(times, begin), np.searchsorted(times, until)
    # Ways out of hosts, into them, and inside.
    ways = [(a, count + b) if a != b else (2 * count + a,) * 2 for a, b in ends]
    change = np.zeros((3 * count, len(times) + 1))
    for way, i, j in zip(ways, first, last, strict=True):
        for interface in set(way):
            change[interface, i] += 1.0
            change[interface, j] -= 1.0
    busy, lengths = np.cumsum(change, axis=1), np.diff(times)
    return [
        float((lengths[i:j] / np.maximum(busy[a, i:j], busy[b, i:j])).sum())
        for (a, b), i, j in zip(ways, first, last, strict=True)
    ]
