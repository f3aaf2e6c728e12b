"""Movement of values from the ranks that compute their rows to those that need them, and of gradients back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from wirewise.plans import RowMove
from wirewise.runtime.pipeline.messages import ValueSpec
from wirewise.runtime.transport import PendingExchange, Transport

__all__ = ["Rows", "ValueMove"]

Rows = Mapping[int, tuple[int, int]]
"""First row of the batch and the one after the last, by rank."""


def _moves(source: Rows, target: Rows) -> list[RowMove]:
    """All moves by target and first row."""
    return [
        RowMove(peer, rank, max(a, begin), min(b, end))
        for rank, (begin, end) in target.items()
        for peer, (a, b) in source.items()
        if max(a, begin) < min(b, end)
    ]


class ValueMove:
    """Value moved between the row layouts of producing and consuming modules, and its gradient moved back.

    All ranks that produce or consume it execute moves in the same order: that of the forward pass, and another for
    gradients. Dtype and shape are sent once, with the first move.

    Args:
        name: Name of the value, for error messages.
        number: Number unique among the moves of the transport.
        source: Rows of the ranks that produce the value.
        target: Rows of the ranks that consume it.
        transport: Messages between all ranks.
    """

    def __init__(self, name: str, number: int, source: Rows, target: Rows, transport: Transport) -> None:
        rank = transport.rank
        self.name, self._transport, self._tag = name, transport, 3 * number
        self._rows = {True: source, False: target}
        """Rows of the side that sends, forward and back."""
        self._ways = {
            True: [one for one in _moves(source, target) if rank in one[:2]],
            False: [one for one in _moves(target, source) if rank in one[:2]],
        }
        """Moves of this rank forward and back."""
        self._source = source
        self.makes, self.takes = rank in source, rank in target
        self._open: dict[bool, PendingExchange] = {}
        self._buffers: dict[bool, dict[int, Tensor]] = {}
        self._told: PendingExchange | None = None
        self.shape: torch.Size | None = None
        """Shape of the value but for its rows; None if not known yet."""
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.trained = True
        """Whether the value has a gradient."""

    def open(self, *, forward: bool) -> None:
        """Post the receives of a move of known shape, so that bytes are received as soon as they are sent."""
        self._buffers[forward] = {
            one.source: torch.empty(
                (one.stop - one.start, *(self.shape or ())), dtype=self.dtype, device=self.device
            )
            for one in self._received(forward)
        }
        what = f"the {'rows' if forward else 'gradient'} of {self.name!r}"
        self._open[forward] = self._transport.open(what, self._tag + (not forward), self._buffers[forward])

    def send_kind(self, value: Tensor) -> None:
        """Send the kind of a value, without waiting for the ranks that `receive_kind`.

        Raises:
            InputError: More dimensions, or another type, than messages have.
        """
        self.trained = value.requires_grad
        self.shape, self.dtype, self.device = value.shape[1:], value.dtype, value.device
        header = ValueSpec(self.shape, self.dtype, self.trained).pack(f"rows of {self.name!r}")
        self._told = self._transport.open(f"the shape of {self.name!r}", self._tag + 2, {})
        for one in self._sent(forward=True):
            if one.target not in self._source:
                self._told.send(one.target, header)
        self._told.launch()
        self.open(forward=True)

    def receive_kind(self, device: torch.device) -> None:
        """Receive the kind of a value, and set the device on which this rank keeps it."""
        headers = {one.source: ValueSpec.empty() for one in self._received(True)}
        self._transport.exchange(f"the shape of {self.name!r}", self._tag + 2, {}, headers)
        if self.shape is None:
            told = ValueSpec.unpack(next(iter(headers.values())))
            self.trained, self.dtype, self.device = told.wants_gradient, told.dtype, device
            self.shape = told.shape
            self.open(forward=True)

    def send(self, value: Tensor, *, forward: bool) -> None:
        """Post this rank's messages.

        Args:
            value: Rows of this rank on the sending side.
            forward: True for the value, False for its gradient.
        """
        first, _ = self._rows[forward][self._transport.rank]
        for one in self._sent(forward=forward):
            self._open[forward].send(one.target, value[one.start - first : one.stop - first].contiguous())
        self._open[forward].launch()

    def receive(self, own: Tensor | None, *, forward: bool) -> Tensor:
        """Wait for this rank's rows on the side that receives.

        Args:
            own: Rows of this rank on the sending side. None if it has none.
            forward: True for the value, False for its gradient.

        Raises:
            PeerError: A peer is gone.
        """
        rank = self._transport.rank
        for _ in self._open[forward].arrivals():
            pass
        parts = []
        for one in self._ways[forward]:
            if one.target == rank == one.source:
                assert own is not None
                first, _ = self._rows[forward][rank]
                parts.append(own[one.start - first : one.stop - first])
            elif one.target == rank:
                parts.append(self._buffers[forward].pop(one.source))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def finish(self) -> int:
        """Wait until sent buffers may be freed; returns the number of bytes sent by this rank."""
        pending = list(self._open.values())
        for one in (*pending, *([self._told] if self._told is not None else [])):
            one.wait_sends()
        self._open.clear()
        self._told = None
        return sum(one.bytes_sent for one in pending)

    def _sent(self, *, forward: bool) -> list[RowMove]:
        return [one for one in self._ways[forward] if one.source == self._transport.rank != one.target]

    def _received(self, forward: bool) -> list[RowMove]:
        return [one for one in self._ways[forward] if one.target == self._transport.rank != one.source]
