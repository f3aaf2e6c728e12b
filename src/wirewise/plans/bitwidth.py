"""Bit widths of halo messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import PlanError
from wirewise.plans.base import Plan, TopologyLike, matrix_picture

__all__ = ["BITS", "BitWidthPlan", "ChannelBits", "row_bytes"]

BITS = (1, 2, 4, 8, 16, 32)
"""Widths of a value on the wire: 1 to 8 quantized, 16 bfloat16, 32 float32."""

_EXCHANGE = re.compile(r"(forward|backward)(\d+)")


def row_bytes(bits: int, width: int, param_bytes: int) -> int:
    """Bytes of one row of `width` values: byte-aligned codes, plus zero point and step if quantized."""
    return (width * bits + 7) // 8 + (param_bytes if bits <= 8 else 0)


class ChannelBits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bit widths of the rows sent from one rank to another in one exchange."""

    exchange: str
    """Name of the exchange. "forward1": activations into layer 1; "backward1": their gradients."""
    sender: int
    receiver: int
    width: int
    """Values in a row."""
    bits: bytes
    """One byte per message, in send order."""

    @property
    def array(self) -> NDArray[np.uint8]:
        """Bits as uint8 [n]."""
        return np.frombuffer(self.bits, dtype=np.uint8)

    @property
    def counts(self) -> dict[int, int]:
        """Number of messages by bit width, ascending."""
        found = np.bincount(self.array, minlength=1)
        return {b: int(found[b]) for b in np.flatnonzero(found).tolist()}

    def size_bytes(self, param_bytes: int) -> int:
        """Size of the channel's buffer, in bytes."""
        return sum(n * row_bytes(b, self.width, param_bytes) for b, n in self.counts.items())


class BitWidthPlan(Plan, frozen=True, kw_only=True, tag="bitwidth"):
    """Bit width for every message of every exchange of an epoch."""

    family: ClassVar[str] = "bitwidth"

    channels: tuple[ChannelBits, ...]
    epoch: int = 0
    """First epoch that uses the plan."""
    param_bytes: int = 6
    """Bytes of zero point and step per quantized row."""
    forward_covers_backward: bool = False
    """Whether the mean forward bits are at least the mean backward bits in every layer, as `check` verifies."""
    predicted_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Predicted seconds of each exchange, on the slowest rank."""
    noise: dict[str, float] = msgspec.field(default_factory=dict)
    """Expected weighted variance added by each exchange."""
    weight_sigma: dict[str, float] = msgspec.field(default_factory=dict)
    """Log standard deviation of the message weights of each exchange; adaptive bits pay above about 1.2."""

    @property
    def exchanges(self) -> list[str]:
        """Exchanges in the order of an epoch: forward layers ascending, backward layers descending."""
        return sorted({c.exchange for c in self.channels}, key=_epoch_order)

    def of(self, exchange: str) -> list[ChannelBits]:
        """Channels of one exchange."""
        return [c for c in self.channels if c.exchange == exchange]

    def bytes_matrix(self, exchange: str) -> NDArray[np.int64]:
        """Bytes from each rank to each rank in one exchange, int64 [sender, receiver]."""
        sizes = np.zeros((self.world_size, self.world_size), dtype=np.int64)
        for channel in self.of(exchange):
            sizes[channel.sender, channel.receiver] += channel.size_bytes(self.param_bytes)
        return sizes

    def counts(self, exchange: str) -> dict[int, int]:
        """Number of messages by bit width in one exchange over all channels."""
        total: dict[int, int] = {}
        for channel in self.of(exchange):
            for bits, count in channel.counts.items():
                total[bits] = total.get(bits, 0) + count
        return dict(sorted(total.items()))

    def mean_bits(self, exchange: str) -> float:
        """Mean bits per value over the messages of one exchange; 0 if it has none."""
        counts = self.counts(exchange)
        return sum(b * n for b, n in counts.items()) / max(sum(counts.values()), 1)

    def check_itself(self) -> None:
        """Raise if channels contradict each other or the world size; see `Plan.check_itself`."""
        Plan.check_itself(self)
        for fault, place in self._faults():
            raise PlanError(fault + matrix_picture(self.world_size, place))

    def check(
        self, topology: TopologyLike, messages: Mapping[tuple[str, int, int], int] | None = None
    ) -> None:
        """Raise if the plan is inconsistent, or does not fit the topology or the job.

        Args:
            topology: Hosts and devices of the job.
            messages: Number of rows that the job sends, by (exchange, sender, receiver). None if not compared.

        Raises:
            PlanError: The message shows the faulty channel in a sender-by-receiver grid.
        """
        Plan.check(self, topology)
        if messages is not None:
            self._check_messages(messages)

    def _faults(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Every broken rule with the channels that break it."""
        if self.param_bytes not in (4, 6):
            yield f"param_bytes is {self.param_bytes} - at `$.param_bytes`; expected 4 or 6", []
        seen: dict[tuple[str, int, int], int] = {}
        widths: dict[str, int] = {}
        for number, channel in enumerate(self.channels):
            place = [(channel.sender, channel.receiver)]
            where = f"{_name(channel)} - at `$.channels[{number}]`"
            for fault in _channel_faults(channel, self.world_size):
                yield f"{where}: {fault}", place
            if (key := (channel.exchange, *place[0])) in seen:
                yield f"{where}: the same channel is planned at `$.channels[{seen[key]}]`; remove one", place
            seen[key] = number
            if widths.setdefault(channel.exchange, channel.width) != channel.width:
                yield f"{where}: width {channel.width}, other channels have {widths[channel.exchange]}", place
        yield from self._count_faults()
        if self.forward_covers_backward:
            yield from self._direction_faults()

    def _count_faults(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """All layers send the same boundary, so one direction's message counts are equal."""
        first: dict[tuple[str, int, int], ChannelBits] = {}
        for channel in self.channels:
            direction = _EXCHANGE.fullmatch(channel.exchange)
            assert direction is not None
            like = first.setdefault((direction[1], channel.sender, channel.receiver), channel)
            if len(like.bits) != len(channel.bits):
                yield (
                    f"{_name(channel)} has {len(channel.bits)} messages, {_name(like)} has {len(like.bits)}; "
                    "every layer sends the same rows, so make the plan again",
                    [(channel.sender, channel.receiver)],
                )

    def _direction_faults(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        names = set(self.exchanges)
        for backward in sorted(n for n in names if n.startswith("backward")):
            forward = backward.replace("backward", "forward")
            if forward in names and self.mean_bits(forward) < self.mean_bits(backward) - 1e-9:
                yield (
                    f"{forward} has {self.mean_bits(forward):.3f} bits on the mean, {backward} has "
                    f"{self.mean_bits(backward):.3f}; the plan claims forward bits >= backward bits",
                    [(c.sender, c.receiver) for c in self.of(forward)],
                )

    def _check_messages(self, messages: Mapping[tuple[str, int, int], int]) -> None:
        planned = {(c.exchange, c.sender, c.receiver): len(c.bits) for c in self.channels}
        for key in sorted({*planned, *messages}):
            if planned.get(key, 0) != messages.get(key, 0):
                exchange, sender, receiver = key
                raise PlanError(
                    f"{exchange} {sender} -> {receiver}: the plan has {planned.get(key, 0)} messages, the "
                    f"job sends {messages.get(key, 0)}; make the plan again for this partition"
                    + matrix_picture(self.world_size, [(sender, receiver)])
                )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """One row per exchange: width, messages by bits, mean bits, bytes, predicted time, noise, sigma."""
        titles = [
            "exchange",
            "width",
            *(f"{b} bit" for b in BITS),
            "mean bits",
            "MB",
            "predicted ms",
            "sigma",
        ]
        rows = []
        for name in self.exchanges:
            counts = self.counts(name)
            seconds, sigma = self.predicted_s.get(name), self.weight_sigma.get(name)
            rows.append(
                [
                    name,
                    str(self.of(name)[0].width),
                    *(str(counts.get(b, 0)) for b in BITS),
                    f"{self.mean_bits(name):.2f}",
                    f"{self.bytes_matrix(name).sum() / 1e6:.3f}",
                    "-" if seconds is None else f"{seconds * 1e3:.3f}",
                    "-" if sigma is None else f"{sigma:.2f}",
                ]
            )
        return titles, rows


def _epoch_order(exchange: str) -> tuple[int, int, str]:
    found = _EXCHANGE.fullmatch(exchange)
    if found is None:
        return 2, 0, exchange
    layer = int(found[2])
    return (0, layer, "") if found[1] == "forward" else (1, -layer, "")


def _name(channel: ChannelBits) -> str:
    return f"{channel.exchange} {channel.sender} -> {channel.receiver}"


def _channel_faults(channel: ChannelBits, world_size: int) -> Iterator[str]:
    if _EXCHANGE.fullmatch(channel.exchange) is None:
        yield f"exchange is {channel.exchange!r}; expected forwardN or backwardN with N a layer number"
    for end, rank in (("sender", channel.sender), ("receiver", channel.receiver)):
        if not 0 <= rank < world_size:
            yield f"{end} is {rank}; expected a rank from 0 to {world_size - 1}"
    if channel.sender == channel.receiver:
        yield f"rank {channel.sender} sends to itself; remove the channel"
    if channel.width < 1:
        yield f"width is {channel.width}; expected at least 1"
    for number in np.flatnonzero(~np.isin(channel.array, BITS))[:1].tolist():
        known = ", ".join(map(str, BITS))
        yield f"message {number} has {channel.bits[number]} bits; expected one of {known}"
