"""Links that carry compressed chunks: which ones gain, and the network as planners should then see it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wirewise.collective import Network
from wirewise.errors import InputError

__all__ = ["Compressed", "compressed"]


class Compressed(NamedTuple):
    """A network some of whose edges carry compressed chunks."""

    network: Network
    """With the rate of uncompressed bytes of each edge."""
    edges: frozenset[int]
    """Numbers of those that compress; on the others the codec would take longer than it saves."""


def compressed(network: Network, ratio: float, codec_s_per_byte: float) -> Compressed:
    """Compress where it pays: an edge takes beta x ratio + codec time instead of beta for a byte.

    Args:
        network: Without compression.
        ratio: Compressed bytes of a byte, such as 0.25.
        codec_s_per_byte: To compress and decompress a byte, not overlapped with sending.

    Raises:
        InputError: A ratio that is not above 0, or a codec time below 0.
    """
    if ratio <= 0 or codec_s_per_byte < 0:
        raise InputError(
            f"got the ratio {ratio} and {codec_s_per_byte} s a byte; expected a ratio above 0 and a time of at least 0"
        )
    edges, gaining = list(network.edges), set()
    for number, edge in enumerate(edges):
        plain = 1 / edge.bandwidth_bytes_per_s
        packed = plain * ratio + codec_s_per_byte
        if packed < plain:
            gaining.add(number)
            edges[number] = edge._replace(bandwidth_bytes_per_s=1 / packed)
    return Compressed(msgspec.structs.replace(network, edges=tuple(edges)), frozenset(gaining))
