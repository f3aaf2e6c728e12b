"""Bytes and seconds of an epoch of mini-batch training on links."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from wirewise.cost.links import TCP_PAYLOAD

__all__ = ["epoch_bytes", "shared_link_s"]

_ID_BYTES = 4


def epoch_bytes(rows: ArrayLike, full_batches: ArrayLike, *, row_bytes: float, batches: int) -> int:
    """Bytes that all ranks send in an epoch: rows, their ids, and the counts in message headers.

    Args:
        rows: Expected remote rows of a full batch of each rank, [ranks].
        full_batches: Full batches of each rank in an epoch, [ranks].
        row_bytes: Mean bytes of a row on the wire.
        batches: Batches per epoch; in each, every rank sends every other rank a message.
    """
    expected = np.asarray(rows, dtype=np.float64)
    ranks = len(expected)
    heads = ranks * (ranks - 1) * (8 + 4 * batches)
    return int(expected @ np.asarray(full_batches, dtype=np.float64) * (row_bytes + _ID_BYTES)) + heads


def shared_link_s(sent_bytes: float, bytes_per_s: float, ranks_per_host: int) -> float:
    """Seconds of a rank's payload on a host's link, if all ranks of the host load it equally."""
    return sent_bytes / TCP_PAYLOAD * ranks_per_host / bytes_per_s
