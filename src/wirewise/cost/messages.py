"""What messages between two ranks tell of the links, beside each other as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.transfers import TransferSample
from wirewise.trace.match import Match
from wirewise.trace.traffic import Traffic

__all__ = ["message_samples"]


def message_samples(
    matches: Sequence[Match], hosts: NDArray[np.int32]
) -> tuple[list[TransferSample], list[TransferSample]]:
    """Messages between hosts, and messages inside of a host; those that share an interface as one sample.

    Of every moment a message gets its share of the interface that carries the most messages then. Who of them gets
    more does not matter to their sum, as it would to each (`trace.traffic`). They pay the latency together.

    Args:
        matches: Matches of any collectives; messages are taken.
        hosts: Host of each rank, [ranks].
    """
    found = [one for one in matches if one.collective == "send" and one.step >= 0 and one.size_bytes > 0]
    samples: tuple[list[TransferSample], list[TransferSample]] = ([], [])
    if not found:
        return samples
    traffic = Traffic(found, hosts.tolist())
    group = traffic.groups()
    seconds = np.bincount(group, traffic.alone_s())
    size = np.bincount(group, [float(one.size_bytes) for one in found])
    until = np.zeros(len(size))
    np.maximum.at(until, group, traffic.until)
    inside = np.zeros(len(size), dtype=bool)
    inside[group] = traffic.ways[0] == traffic.ways[1]
    for end, took, total, within in zip(*(a.tolist() for a in (until, seconds, size, inside)), strict=True):
        samples[within].append(TransferSample(end - took, end, total, 1, "send", alone=True))
    return samples
