"""Estimates of links from point-to-point messages, including concurrent ones."""

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
    """Samples of messages between hosts and inside hosts; messages that share an interface form one sample.

    At any time, a message gets an equal fraction of the interface with the most concurrent messages. An unequal split
    would matter to each message but not to their sum (`trace.traffic`). They pay the latency together.

    Args:
        matches: Matches of any collectives; only messages are used.
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
