"""Epoch time from four rates, the reference that measured speedups are held against."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EpochModel:
    """Epoch time of one rank from four rates: the reference that measured speedups are held against."""

    compute_s: float
    central_s: float
    """Part of the computing that can go on while bytes are on the wire."""
    wire_bytes: float
    """Float32 bytes that the rank sends in an epoch."""
    bandwidth_bytes_per_s: float
    pack_bytes_per_s: float = float("inf")
    unpack_bytes_per_s: float = float("inf")

    def epoch_s(self, ratio: float = 1.0, *, overlap: bool = False) -> float:
        """Seconds of an epoch whose messages are `ratio` times smaller; ratio 1 sends float32, no codec."""
        wire = self.wire_bytes / self.bandwidth_bytes_per_s / ratio
        codec = 0.0
        if ratio != 1.0:
            codec = self.wire_bytes / self.pack_bytes_per_s + self.wire_bytes / self.unpack_bytes_per_s
        if overlap:
            return self.compute_s - self.central_s + max(self.central_s, wire) + codec
        return self.compute_s + wire + codec

    @property
    def wire_share(self) -> float:
        """Share of the uncompressed serial epoch that is spent on the wire."""
        return self.wire_bytes / self.bandwidth_bytes_per_s / self.epoch_s()

    def speedup(self, ratio: float, *, overlap: bool = False) -> float:
        """Uncompressed serial epoch over the compressed one."""
        return self.epoch_s() / self.epoch_s(ratio, overlap=overlap)
