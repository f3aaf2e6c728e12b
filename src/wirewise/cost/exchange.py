"""Costs of halo exchanges in an epoch, agreed on by all ranks, and bounds on the gain of compressing gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.codec import CodecCost
from wirewise.cost.links import Links
from wirewise.cost.pairs import PairCosts
from wirewise.errors import InputError

__all__ = [
    "ExchangeCosts",
    "break_even_bytes_per_s",
    "exposed_s",
    "speedup_bound",
]

Matrix = NDArray[np.float64]


def exposed_s(wire_s: Matrix, hidden_s: Matrix | float, codec_s: Matrix | float) -> float:
    """Seconds that an exchange adds to an epoch: codec time, and wire time not hidden by compute.

    Ranks synchronise in the next exchange, so the slowest rank decides.
    """
    return float(np.max(codec_s + np.maximum(wire_s - hidden_s, 0.0))) if np.size(wire_s) else 0.0


@dataclass(frozen=True, kw_only=True)
class ExchangeCosts:
    """Measured costs from which a planner prices an exchange; equal on all ranks after `share`."""

    links: Links
    codec: CodecCost = field(default_factory=CodecCost)
    hidden_s: Mapping[str, Matrix] = field(default_factory=dict)
    """Computing that overlaps an exchange, [P] by exchange; zero for a missing exchange."""

    def hidden(self, exchange: str) -> Matrix:
        """Hidden time of an exchange, in seconds by rank, [P]."""
        given = self.hidden_s.get(exchange)
        return np.zeros(self.links.world_size) if given is None else np.asarray(given, dtype=np.float64)

    def share(self, rank: int, allgather: Callable[[Matrix], Sequence[Matrix]]) -> ExchangeCosts:
        """Combine the measurements of all ranks into costs that are equal on all of them.

        A channel's link cost is its receiver's, hidden seconds are each rank's own, codec costs the median.

        Args:
            rank: Index of this rank.
            allgather: Function that sends a float64 array and returns those of all ranks, in rank order; shapes are
                equal.
        """
        names, bits = sorted(self.hidden_s), self._codec_bits()
        own = np.concatenate(
            [
                self.links.pairs.latency_s[:, rank],
                self.links.pairs.s_per_byte[:, rank],
                [self.hidden(name)[rank] for name in names],
                [table.get(b, 0.0) for table in self._codec_tables() for b in bits],
            ]
        )
        gathered = np.stack([np.asarray(row, dtype=np.float64) for row in allgather(own)])
        ranks = self.links.world_size
        codec = np.median(gathered[:, 2 * ranks + len(names) :], axis=0).reshape(4, len(bits))
        tables = [dict(zip(bits, row, strict=True)) for row in codec.tolist()]
        hidden = {n: gathered[:, 2 * ranks + i].copy() for i, n in enumerate(names)}
        pairs = PairCosts(
            np.ascontiguousarray(gathered[:, :ranks].T),
            np.ascontiguousarray(gathered[:, ranks : 2 * ranks].T),
        )
        shared = CodecCost(
            pack_s_per_value=tables[0],
            unpack_s_per_value=tables[1],
            pack_s_per_row=tables[2],
            unpack_s_per_row=tables[3],
        )
        return ExchangeCosts(links=self.links.with_pairs(pairs), codec=shared, hidden_s=hidden)

    def _codec_tables(self) -> list[dict[int, float]]:
        c = self.codec
        return [c.pack_s_per_value, c.unpack_s_per_value, c.pack_s_per_row, c.unpack_s_per_row]

    def _codec_bits(self) -> list[int]:
        return sorted({b for table in self._codec_tables() for b in table})


def speedup_bound(rho: float, ratio: float = float("inf")) -> float:
    """Upper bound on the epoch speedup by compression if a fraction `rho` of the epoch is spent on the wire.

    Args:
        rho: Wire time over epoch time, uncompressed, in [0, 1].
        ratio: Uncompressed over compressed bytes; infinite for the limit of any compression.
    """
    if not 0.0 <= rho <= 1.0 or ratio <= 0:
        raise InputError(f"got rho {rho} and ratio {ratio}; expected a share in [0, 1] and a ratio above 0")
    rest = (1.0 - rho) + rho / ratio
    return 1.0 / rest if rest > 0 else float("inf")


def break_even_bytes_per_s(ratio: float, pack_bytes_per_s: float, unpack_bytes_per_s: float) -> float:
    """Link bandwidth above which compression costs more time than it saves; codec rates in float32 bytes per second."""
    return (1.0 - 1.0 / ratio) / (1.0 / pack_bytes_per_s + 1.0 / unpack_bytes_per_s)
