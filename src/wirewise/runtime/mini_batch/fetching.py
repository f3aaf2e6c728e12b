"""Fetch of other machines' rows in two exchanges per batch: ids to their owners, rows back.

Each message of ids starts with the number of ids that the next batch will request, so that receivers know its size in
advance. Row numbers are sent as int32 relative to their owner's first row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from wirewise.rng import stream_key
from wirewise.runtime.mini_batch.all_to_all import AllToAll, exclusive
from wirewise.runtime.mini_batch.store import RowStore
from wirewise.runtime.mini_batch.wire import ROW_FORMATS, WIRE_BITS, agree_encodings
from wirewise.runtime.transport import PendingExchange, Transport

__all__ = ["ROW_FORMATS", "WIRE_BITS", "Answer", "Fetcher", "PendingRows", "RowRequest"]


class RowRequest(NamedTuple):
    """Rows that a batch requests from other machines."""

    places: NDArray[np.int64]
    """Positions in the batch's rows, by owner, [w]."""
    rows: NDArray[np.int32]
    """Index of each in its owner's rows, [w]."""
    counts: NDArray[np.int64]
    """Number of rows requested from each machine, [K]."""


class Answer(NamedTuple):
    """Encoded rows for all machines."""

    message: UInt8[Tensor, " bytes"]
    sizes: NDArray[np.int64]
    """Bytes for each machine, [K]."""


class PendingRows(NamedTuple):
    """Rows to be received."""

    rows: UInt8[Tensor, " bytes"]
    """Encoded rows, by owner."""
    pending: PendingExchange


class Fetcher(AllToAll):
    """Client and server of remote rows; all machines call the same methods in the same order.

    One thread sends; another may wait for rows meanwhile. The constructor is a collective call, in which machines
    agree on the smallest exact format of their rows: `wire`.

    Args:
        store: Rows of this machine.
        transport: Transport between the machines; its group must not be used otherwise meanwhile.
        ids: Separate transport for ids, so that they do not queue behind rows of earlier batches. Defaults to that of
            the rows.
        bits: One of `WIRE_BITS`, at most those of the store. Defaults to unquantized rows. Rows are not quantized if
            the smallest exact format takes no more bytes.
        formats: One of `ROW_FORMATS`: "smallest" exact format, or "dense" rows.
        seed: Seed of stochastic rounding, if rows are quantized.

    Raises:
        InputError: The bits or formats are unknown.
        PeerError: A machine is gone.
    """

    def __init__(
        self,
        store: RowStore,
        transport: Transport,
        *,
        ids: Transport | None = None,
        bits: int | None = None,
        formats: str = "smallest",
        seed: int = 0,
    ) -> None:
        super().__init__(ids or transport)
        self.store, self._seed, self._rows = store, seed, transport
        self._exact, self.wire = agree_encodings(store, self.transport, bits, formats)
        self._tag = 0
        self._announced: NDArray[np.int64] = np.zeros(transport.world_size, np.int64)

    @property
    def groups(self) -> set[Any]:
        """Process groups of ids and of rows."""
        return super().groups | {self._rows.group}

    def wanted(self, ids: NDArray[np.int64]) -> RowRequest:
        """Request for the rows of `ids` that this machine neither owns nor caches."""
        places = self.store.missing(ids)
        offsets = self.store.offsets
        owner = np.searchsorted(offsets, ids[places], side="right") - 1
        counts = np.bincount(owner, minlength=self.transport.world_size)
        return RowRequest(places, (ids[places] - offsets[owner]).astype(np.int32), counts)

    def announce(self, first: RowRequest) -> None:
        """Notify the owners of the number of rows that the first batch will request."""
        came = torch.empty(self.transport.world_size, dtype=torch.int64)
        self.exchange("the numbers of the first batch", torch.from_numpy(first.counts), came, None, None)
        self._announced = came.numpy()

    def ask(self, request: RowRequest, following: RowRequest | None) -> list[NDArray[np.int32]]:
        """Send the ids of a batch; returns the rows requested by each other machine, [K][rows].

        Args:
            request: Rows of the announced batch.
            following: Rows of the next batch. None if it is the last.

        Raises:
            PeerError: A machine is gone.
        """
        machines = self.transport.world_size
        ahead = np.zeros(machines, np.int64) if following is None else following.counts
        sends, receives = request.counts + 1, self._announced + 1
        starts = np.concatenate([[0], np.cumsum(sends)])
        message = np.empty(int(starts[-1]), np.int32)
        heads = starts[:-1]
        message[heads] = ahead
        body = np.ones(len(message), dtype=bool)
        body[heads] = False
        message[body] = request.rows
        came = torch.empty(int(receives.sum()), dtype=torch.int32)
        self.exchange("the exchange of ids", torch.from_numpy(message), came, sends, receives)
        parts = np.split(came.numpy(), np.cumsum(receives)[:-1])
        self._announced = np.array([part[0] for part in parts], np.int64)
        return [part[1:] for part in parts]

    def answer(self, requested: list[NDArray[np.int32]], epoch: int = 0, batch: int = 0) -> Answer:
        """Encode the rows requested by each machine; rounding differs between epochs and batches."""
        store, key = self.store, stream_key(self._seed, epoch, batch)
        places = [rows.astype(np.int64) for rows in requested]
        sizes = np.array([self.wire.size_bytes(rows + store.first) for rows in places])
        out = torch.empty(int(sizes.sum()), dtype=torch.uint8)
        for part, rows in zip(out.split(sizes.tolist()), places, strict=True):
            if len(rows):
                self.wire.encode(rows, key, part)
        return Answer(out, sizes)

    def expect(self, request: RowRequest) -> PendingRows:
        """Post the receives of a batch's rows, before they are requested (see `fetch`); the timeout runs from now."""
        sizes = [self.wire.size_bytes(nodes) for nodes in self._nodes(request)]
        came = torch.empty(sum(sizes), dtype=torch.uint8)
        self._tag += 1
        receives = dict(enumerate(came.split(sizes)))
        return PendingRows(came, self._rows.open("the exchange of rows", self._tag, receives))

    def send(self, incoming: PendingRows, answer: Answer) -> None:
        """Start sending the encoded rows requested by others with the ids of the batch of `incoming`.

        All receives have been posted by then. gloo has one connection for both directions between two ranks: a
        receive-ready notification would queue behind rows in the other direction, and rows would be sent in one
        direction at a time.

        Raises:
            PeerError: A machine is gone.
        """
        parts = answer.message.split(answer.sizes.tolist())
        for peer in self._rows.peers:
            incoming.pending.send(peer, parts[peer])
        incoming.pending.launch()

    def receive(self, incoming: PendingRows) -> UInt8[Tensor, " bytes"]:
        """Wait for the rows of a batch; `incoming.pending.wait_sends` waits for those requested by others.

        Raises:
            PeerError: A machine is gone.
        """
        incoming.pending.drain()
        self.count(incoming.pending.bytes_sent, len(incoming.rows))
        return incoming.rows

    def fetch(self, incoming: PendingRows, answer: Answer) -> UInt8[Tensor, " bytes"]:
        """Send, and wait for rows and sends."""
        self.send(incoming, answer)
        came = self.receive(incoming)
        incoming.pending.wait_sends()
        return came

    def place(
        self,
        request: RowRequest,
        received: UInt8[Tensor, " bytes"],
        out: Float[Tensor, "n f"],
        positions: NDArray[np.int64],
    ) -> None:
        """Decode received rows and add them to the zeroed rows `positions` of `out`."""
        start = begin = 0
        for nodes in self._nodes(request):
            if len(nodes):
                size = self.wire.size_bytes(nodes)
                index = torch.from_numpy(positions[begin : begin + len(nodes)])
                self.wire.decode(received[start : start + size], nodes, index, out)
                start, begin = start + size, begin + len(nodes)

    def _nodes(self, wanted: RowRequest) -> list[NDArray[np.int64]]:
        """Global ids of the rows asked of each machine, [K][rows]."""
        first = np.repeat(self.store.offsets[:-1], wanted.counts)
        return np.split(first + wanted.rows, np.cumsum(wanted.counts)[:-1])

    def fill_cache(self) -> None:
        """Fetch the cached rows of other machines, unquantized.

        Raises:
            InputError: Batches are in flight on the groups of this fetcher.
            PeerError: A machine is gone.
        """
        with exclusive(self):
            self._fill_cache()

    def _fill_cache(self) -> None:
        wire, self.wire = self.wire, self._exact
        ids = self.store.cached
        owner = np.searchsorted(self.store.offsets, ids, side="right") - 1
        order = np.argsort(owner, kind="stable")
        rows = (ids[order] - self.store.offsets[owner[order]]).astype(np.int32)
        wanted = RowRequest(order, rows, np.bincount(owner, minlength=self.transport.world_size))
        self.announce(wanted)
        incoming = self.expect(wanted)
        came = self.fetch(incoming, self.answer(self.ask(wanted, None)))
        found = torch.zeros(len(ids), self.store.num_features)
        self.place(wanted, came, found, wanted.places)
        self.store.fill(found)
        self.wire = wire
