"""Rows of other machines in two exchanges a batch: ids to their owners, rows back.

Each message of ids begins with the number of ids that the next batch will ask for, so that receivers know its size
before it comes. Numbers of rows travel as int32 relative to the first row of their owner.
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
from wirewise.runtime.mini_batch.wire import ROW_FORMATS, WIRE_BITS, agreed_wires
from wirewise.runtime.transport import PendingExchange, Transport

__all__ = ["ROW_FORMATS", "WIRE_BITS", "Answer", "Fetcher", "Incoming", "RowRequest"]


class RowRequest(NamedTuple):
    """Rows that a batch asks of other machines."""

    places: NDArray[np.int64]
    """Where they belong in the batch's rows, by owner; [w]."""
    rows: NDArray[np.int32]
    """Number of each in its owner's rows, [w]."""
    counts: NDArray[np.int64]
    """Rows asked of each machine, [K]."""


class Answer(NamedTuple):
    """Encoded rows for all machines."""

    message: UInt8[Tensor, " bytes"]
    sizes: NDArray[np.int64]
    """Bytes for each machine, [K]."""


class Incoming(NamedTuple):
    """Rows that are to come."""

    rows: UInt8[Tensor, " bytes"]
    """Encoded, by owner."""
    pending: PendingExchange


class Fetcher(AllToAll):
    """Asks other machines for rows, and answers what they ask; all machines call the same methods in the same order.

    One thread sends; another may wait for rows meanwhile. When it is made, on all machines at the same time, they agree
    on the smallest exact format of their rows: `wire`.

    Args:
        store: Rows of this machine.
        transport: The machines; nothing else may use its group meanwhile.
        ids: Carries ids in a group of its own, so that they do not queue behind rows of earlier batches; none: the
            group of the rows.
        bits: One of `WIRE_BITS`, at most those of the store; none: rows as they are. Rows are not quantized where the
            smallest exact format takes no more bytes.
        formats: One of `ROW_FORMATS`: "smallest" exact format, or "dense" rows.
        seed: Seed of stochastic rounding, where rows are quantized.

    Raises:
        InputError: Other bits or formats.
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
        self._exact, self.wire = agreed_wires(store, self.transport, bits, formats)
        self._tag = 0
        self._announced: NDArray[np.int64] = np.zeros(transport.world_size, np.int64)

    @property
    def groups(self) -> set[Any]:
        """Process groups of ids and of rows."""
        return super().groups | {self._rows.group}

    def wanted(self, ids: NDArray[np.int64]) -> RowRequest:
        """The rows among `ids` that are not held."""
        places = self.store.missing(ids)
        offsets = self.store.offsets
        owner = np.searchsorted(offsets, ids[places], side="right") - 1
        counts = np.bincount(owner, minlength=self.transport.world_size)
        return RowRequest(places, (ids[places] - offsets[owner]).astype(np.int32), counts)

    def announce(self, first: RowRequest) -> None:
        """Tell the owners how many rows the first batch will ask for."""
        came = torch.empty(self.transport.world_size, dtype=torch.int64)
        self.exchange("the numbers of the first batch", torch.from_numpy(first.counts), came, None, None)
        self._announced = came.numpy()

    def ask(self, wanted: RowRequest, following: RowRequest | None) -> list[NDArray[np.int32]]:
        """Send the ids of a batch; returns what each other machine asks for, [K][rows].

        Args:
            wanted: Rows of the batch that was announced.
            following: Rows of the next batch; none: it is the last.

        Raises:
            PeerError: A machine is gone.
        """
        machines = self.transport.world_size
        ahead = np.zeros(machines, np.int64) if following is None else following.counts
        sends, receives = wanted.counts + 1, self._announced + 1
        starts = np.concatenate([[0], np.cumsum(sends)])
        message = np.empty(int(starts[-1]), np.int32)
        heads = starts[:-1]
        message[heads] = ahead
        body = np.ones(len(message), dtype=bool)
        body[heads] = False
        message[body] = wanted.rows
        came = torch.empty(int(receives.sum()), dtype=torch.int32)
        self.exchange("the exchange of ids", torch.from_numpy(message), came, sends, receives)
        parts = np.split(came.numpy(), np.cumsum(receives)[:-1])
        self._announced = np.array([part[0] for part in parts], np.int64)
        return [part[1:] for part in parts]

    def answer(self, asked: list[NDArray[np.int32]], epoch: int = 0, batch: int = 0) -> Answer:
        """Encode the rows that each machine asked for; rounding differs between epochs and batches."""
        store, key = self.store, stream_key(self._seed, epoch, batch)
        places = [rows.astype(np.int64) for rows in asked]
        sizes = np.array([self.wire.size_bytes(rows + store.first) for rows in places])
        out = torch.empty(int(sizes.sum()), dtype=torch.uint8)
        for part, rows in zip(out.split(sizes.tolist()), places, strict=True):
            if len(rows):
                self.wire.encode(rows, key, part)
        return Answer(out, sizes)

    def expect(self, wanted: RowRequest) -> Incoming:
        """Prepare to receive the rows of a batch, before it is asked for: see `fetch`. Its time limit runs from now."""
        sizes = [self.wire.size_bytes(nodes) for nodes in self._nodes(wanted)]
        came = torch.empty(sum(sizes), dtype=torch.uint8)
        self._tag += 1
        receives = dict(enumerate(came.split(sizes)))
        return Incoming(came, self._rows.open("the exchange of rows", self._tag, receives))

    def send(self, incoming: Incoming, answer: Answer) -> None:
        """Start to send the encoded rows that others asked for with the ids of a batch, of which `incoming` comes back.

        All receives have been posted by then. gloo has one connection for both directions between two ranks: the word
        that a receive is ready would wait behind the rows that travel the other way, and rows would go one way at a
        time.

        Raises:
            PeerError: A machine is gone.
        """
        parts = answer.message.split(answer.sizes.tolist())
        for peer in self._rows.peers:
            incoming.pending.send(peer, parts[peer])
        incoming.pending.launch()

    def land(self, incoming: Incoming) -> UInt8[Tensor, " bytes"]:
        """Wait for the rows of a batch; `incoming.pending.wait_sends` waits for those that others asked for.

        Raises:
            PeerError: A machine is gone.
        """
        incoming.pending.drain()
        self.count(incoming.pending.bytes_sent, len(incoming.rows))
        return incoming.rows

    def fetch(self, incoming: Incoming, answer: Answer) -> UInt8[Tensor, " bytes"]:
        """Send, and wait for rows and sends."""
        self.send(incoming, answer)
        came = self.land(incoming)
        incoming.pending.wait_sends()
        return came

    def place(
        self,
        wanted: RowRequest,
        came: UInt8[Tensor, " bytes"],
        out: Float[Tensor, "n f"],
        places: NDArray[np.int64],
    ) -> None:
        """Decode the rows that came and add them to `places` of `out`, which are zero."""
        start = begin = 0
        for nodes in self._nodes(wanted):
            if len(nodes):
                size = self.wire.size_bytes(nodes)
                index = torch.from_numpy(places[begin : begin + len(nodes)])
                self.wire.decode(came[start : start + size], nodes, index, out)
                start, begin = start + size, begin + len(nodes)

    def _nodes(self, wanted: RowRequest) -> list[NDArray[np.int64]]:
        """Global ids of the rows asked of each machine, [K][rows]."""
        first = np.repeat(self.store.offsets[:-1], wanted.counts)
        return np.split(first + wanted.rows, np.cumsum(wanted.counts)[:-1])

    def fill_cache(self) -> None:
        """Fetch the rows that the store keeps of other machines, as they are.

        Raises:
            InputError: Batches travel on the groups of this fetcher.
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
