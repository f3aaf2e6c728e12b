"""One direction of one layer's exchange: encodes, sends and receives in its own buffers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from wirewise import codec, rng
from wirewise.errors import PeerError
from wirewise.runtime.full_graph.boundary import BlockSkipper, BoundarySampler, Route
from wirewise.runtime.full_graph.clock import PhaseClock
from wirewise.runtime.full_graph.modes import ExchangeMode
from wirewise.runtime.full_graph.received import ReceivedRows
from wirewise.runtime.pipeline.messages import MessageJournal, ValueSpec
from wirewise.runtime.transport import PendingExchange, Transport

__all__ = ["Buffers", "Lane", "check_tables"]


@dataclass
class _Slot:
    """Buffers of one exchange in flight."""

    send: dict[int, Tensor] = field(default_factory=dict)
    receive: dict[int, Tensor] = field(default_factory=dict)
    sent: dict[int, Tensor] = field(default_factory=dict)
    """Positions of the rows sent to a peer in its full list, where only a sample travels."""
    received: dict[int, Tensor] = field(default_factory=dict)
    pending: PendingExchange | None = None


class Buffers:
    """Buffers for a layer's float32 messages, shared by lanes used alternately: forward, backward and evaluation.

    The receive buffer of one direction is the send buffer of the other.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, bool], Tensor] = {}
        self.pending: PendingExchange | None = None
        """The exchange that used them last."""

    def take(self, peer: int, owned: bool, size_bytes: int, device: torch.device) -> Tensor:
        """Buffer of the rows owned by this rank and needed by `peer`, or vice versa."""
        found = self._held.get((peer, owned))
        if found is None or len(found) != size_bytes:
            found = self._held[peer, owned] = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        return found

    def wait(self) -> None:
        """Wait until all buffers may be overwritten."""
        if self.pending is not None:
            self.pending.drain()
            self.pending.wait_sends()


class Lane:
    """Lane that sends and receives the boundary rows of one layer in one direction.

    Args:
        name: Name of the exchange, "forward1".
        number: Number unique among the lanes of all modes of the job, used by tags and random streams.
        width: Columns of a row.
        route: Rows that each rank sends to each other one.
        mode: Bits, staleness, sampling.
        journal: Log of encoded messages, also with those of an earlier run.
        shared: Buffers of lanes that are never in flight together. Defaults to separate buffers.
    """

    def __init__(
        self,
        name: str,
        number: int,
        width: int,
        route: Route,
        transport: Transport,
        mode: ExchangeMode,
        clock: PhaseClock,
        *,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        journal: MessageJournal | None = None,
        shared: Buffers | None = None,
    ) -> None:
        self.name, self.number, self.width, self.route = name, number, width, route
        self.transport, self.mode, self.clock, self.seed = transport, mode, clock, seed
        self.dtype, self.device, self.journal = dtype, device, journal or MessageJournal()
        self._shared = shared
        self.send_bits: dict[int, np.ndarray] = {}
        self.receive_bits: dict[int, np.ndarray] = {}
        self.send_layouts: dict[int, codec.MessageLayout | None] = {}
        self.receive_layouts: dict[int, codec.MessageLayout | None] = {}
        self.variance: dict[int, np.ndarray] = {p: np.zeros(len(r)) for p, r in route.send_rows.items()}
        """Sum over traced epochs of width / 6 * (max - min)^2 for each message, by receiving peer."""
        self.traced_epochs = 0
        self.bytes_sent = 0
        self.posted = 0
        """Number of exchanges that have begun."""
        self._arrival_s: dict[int, float] = {}
        self._slots = [_Slot() for _ in range(2 if mode.stale else 1)]
        self._turn = 0
        self._current: _Slot | None = None
        """The exchange that was posted last."""
        self._previous: _Slot | None = None
        """Exchange of the previous epoch, whose rows this one uses where the mode is `stale`."""
        self._sampler = BoundarySampler(
            route, mode.boundary_rate, rank=transport.rank, seed=seed, device=device
        )
        self._skipper = BlockSkipper(route, drift=mode.skip_drift, limit=mode.skip_limit)

    def set_bits(self, send: Mapping[int, np.ndarray], receive: Mapping[int, np.ndarray]) -> None:
        """Set every message's bit width (uint8 [n] by peer), and lay out the buffers again."""
        for slot in self._slots:
            if slot.pending is not None:
                slot.pending.wait_sends()
        self.send_bits, self.receive_bits = dict(send), dict(receive)
        self.send_layouts = {p: self._layout(b) for p, b in send.items()}
        self.receive_layouts = {p: self._layout(b) for p, b in receive.items()}
        for slot in self._slots:
            slot.send = {p: self._buffer(p, x, len(send[p]), True) for p, x in self.send_layouts.items()}
            slot.receive = {
                p: self._buffer(p, x, len(receive[p]), False) for p, x in self.receive_layouts.items()
            }
        self._arrival_s = {}

    def forget_trace(self) -> None:
        """Restart tracing."""
        self.variance = {p: np.zeros_like(v) for p, v in self.variance.items()}
        self.traced_epochs = 0

    def set_static_bits(self) -> None:
        """Set every message to the mode's bit width, or 8 bits until a planner decides."""
        bits = self.mode.bits if isinstance(self.mode.bits, int) else 8
        self.set_bits(
            {p: np.full(len(r), bits, np.uint8) for p, r in self.route.send_rows.items()},
            {p: np.full(n, bits, np.uint8) for p, n in self.route.receive_counts.items()},
        )

    def _layout(self, bits: np.ndarray) -> codec.MessageLayout | None:
        if self.dtype == torch.float64 or bool((bits == 32).all()):
            return None
        return codec.MessageLayout(bits, self.width, param_bytes=self.mode.param_bytes)

    def _buffer(self, peer: int, layout: codec.MessageLayout | None, rows: int, sent: bool) -> Tensor:
        size = layout.size_bytes if layout is not None else rows * self.width * self.dtype.itemsize
        if self._shared is not None:
            return self._shared.take(peer, sent == self.route.owner_sends, size, self.device)
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def post(self, x: Float[Tensor, "n d"], epoch: int, *, trace: bool, wait: bool = False) -> None:
        """Encode and send the boundary rows of `x`; receives are posted first.

        Args:
            x: Rows of the sender, of which the route's are sent.
            epoch: Key of the stochastic rounding and the boundary sample.
            trace: Add the range of every quantized message to `variance`.
            wait: Return only when the rows of the peers have arrived (no overlap).

        Raises:
            CodecError: A message holds NaN or infinity.
            PeerError: A peer is gone.
        """
        self.posted += 1
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % len(self._slots)
        if slot.pending is not None:
            slot.pending.wait_sends()
        if self._shared is not None:
            self._shared.wait()
        # Buffers are written again.
        self.journal.waits(lambda: False)
        slot.sent, slot.received = self._sampler.draw(epoch)
        sending = self._skipper.choose(x)
        what = f"{self.name} of epoch {epoch}"
        receives = {
            p: self._part(slot.receive[p], slot.received.get(p))
            for p in self._receiving(what, sending, epoch)
        }
        logged = [p for p in receives if self.journal.holds(p, (epoch, 0))]
        for peer in logged:
            receives.pop(peer).copy_(self.journal.take(peer, self.number, (epoch, 0))[0])
        slot.pending = self.transport.open(what, self._tag(epoch), receives)
        if self._shared is not None:
            self._shared.pending = slot.pending
        slot.pending.mark_arrived(logged)
        for peer in self.transport.peers:
            if peer in sending and len(self.route.send_rows[peer]):
                self._send(slot, peer, x, epoch, trace)
        slot.pending.launch()
        self.bytes_sent += slot.pending.bytes_sent
        self.traced_epochs += trace
        self._current = slot
        if wait and not self.mode.stale:
            with self.clock.phase("wire"):
                slot.pending.drain()

    def _send(self, slot: _Slot, peer: int, x: Tensor, epoch: int, trace: bool) -> None:
        positions = slot.sent.get(peer)
        layout, rows, ids = self.send_layouts[peer], self.route.send_rows[peer], self.route.send_ids[peer]
        buffer = self._part(slot.send[peer], positions)
        with self.clock.phase("pack"):
            if layout is None:
                chosen = rows if positions is None else rows[positions]
                torch.index_select(x, 0, chosen, out=buffer.view(self.dtype).view(-1, self.width))
            else:
                ranges = torch.empty(len(rows), dtype=torch.float32, device=x.device) if trace else None
                key = rng.stream_key(self.seed, epoch, self.number, self.transport.rank, peer)
                codec.pack(
                    x, rows, layout, buffer, key=key, rows=ids, stochastic=self.mode.stochastic, ranges=ranges
                )
                if ranges is not None:
                    spread = ranges.cpu().numpy().astype(np.float64)
                    self.variance[peer] += self.width / 6.0 * spread * spread
        assert slot.pending is not None
        described = ValueSpec(buffer.shape, buffer.dtype, False)
        if self.journal.sent(peer, self.number, (epoch, 0), buffer, described):
            slot.pending.send(peer, buffer)

    def collect(self) -> Iterator[ReceivedRows]:
        """Yield the rows of each peer as they arrive; with `stale`, those of the previous epoch.

        Raises:
            PeerError: A peer closed its connection or timed out.
        """
        slot = self._current
        if self.mode.stale:
            slot, self._previous = self._previous, slot
        if slot is None:
            return
        assert slot.pending is not None
        waits = slot.pending
        self.journal.waits(lambda: not waits.waits)
        # Sums of floats depend on their order: rows are handed out in the order of the peers, each as soon as
        # it and all before it have landed, so that a training can be repeated bit for bit.
        landed = slot.pending.arrivals()
        here: set[int] = set()
        seen = set()
        for peer in [p for p in self.transport.peers if slot.pending.expects(p)]:
            with self.clock.phase("wire"):
                while peer not in here:
                    here.add(next(landed))
            seen.add(peer)
            yield self._received(slot, peer)
        for peer, seconds in slot.pending.arrival_s.items():
            self._arrival_s[peer] = min(seconds, self._arrival_s.get(peer, seconds))
        if self._skipper.active:
            # Blocks that their owners did not send again are still in the buffer.
            for peer in set(self._receivable()) - seen:
                yield self._received(slot, peer)

    def _received(self, slot: _Slot, peer: int) -> ReceivedRows:
        positions = slot.received.get(peer)
        buffer = self._part(slot.receive[peer], positions)
        return ReceivedRows(
            peer, buffer, self.receive_layouts[peer], positions, self._sampler.scale, self.clock
        )

    def take_arrivals(self) -> dict[int, float]:
        """Minimum seconds from the start of an exchange to the arrival of each peer's message, since the last call."""
        taken, self._arrival_s = self._arrival_s, {}
        return taken

    def drain(self) -> None:
        """Wait for everything in flight; received rows are still used in the next epoch."""
        for slot in self._slots:
            if slot.pending is not None:
                slot.pending.drain()
                slot.pending.wait_sends()

    def state_dict(self) -> dict[str, object]:
        """State of the next epochs: bits, traces, arrivals, and received but unused rows."""
        self.drain()
        late = self._previous
        return {
            "send_bits": self.send_bits,
            "receive_bits": self.receive_bits,
            "variance": self.variance,
            "traced_epochs": self.traced_epochs,
            "arrivals": self._arrival_s,
            "late": None if late is None else {p: b.clone() for p, b in late.receive.items()},
            **self._skipper.state_dict(),
            "held": {p: b.clone() for p, b in self._slots[0].receive.items()} if self.mode.skip_limit else {},
        }

    def load_state_dict(self, state: Mapping) -> None:
        """Continue from `state_dict`."""
        self.set_bits(state["send_bits"], state["receive_bits"])
        self.variance, self.traced_epochs = state["variance"], state["traced_epochs"]
        self._arrival_s = state["arrivals"]
        self._skipper.load_state_dict(state)
        for peer, held in state["held"].items():
            self._slots[0].receive[peer].copy_(held)
        if state["late"] is not None:
            slot = self._slots[self._turn]
            self._turn = (self._turn + 1) % len(self._slots)
            for peer, rows in state["late"].items():
                slot.receive[peer].copy_(rows)
            slot.pending = self.transport.open(f"{self.name}, restored", 0, {})
            slot.pending.mark_arrived(state["late"])
            self._previous = slot

    def _tag(self, epoch: int) -> int:
        return ((epoch % 4096) * 1024 + self.number % 1024) * 2

    def _part(self, buffer: Tensor, positions: Tensor | None) -> Tensor:
        """The front of a buffer that a sample of its rows fills."""
        if positions is None:
            return buffer
        return buffer[: len(positions) * self.width * self.dtype.itemsize]

    def _receiving(self, label: str, sending: set[int], epoch: int) -> list[int]:
        """Peers whose rows will come; with skipping they say so in one byte each first."""
        peers = self._receivable()
        if not self._skipper.active:
            return peers
        said = {p: torch.tensor([p in sending], dtype=torch.uint8) for p in self.route.send_rows}
        heard = {p: torch.zeros(1, dtype=torch.uint8) for p in peers}
        said = {p: f for p, f in said.items() if len(self.route.send_rows[p])}
        with self.clock.phase("wire"):
            self.transport.exchange(label + " (flags)", self._tag(epoch) + 1, said, heard)
        return [p for p in peers if heard[p]]

    def _receivable(self) -> list[int]:
        """Peers that hold rows for this rank."""
        return [p for p, n in self.route.receive_counts.items() if n]


def check_tables(lanes: Mapping[str, Lane], transport: Transport) -> None:
    """Compare the bit tables of both ends of every channel by checksum.

    Raises:
        PeerError: Two ranks have different tables for a channel.
    """
    for number, (name, lane) in enumerate(sorted(lanes.items())):
        mine = {p: torch.tensor([zlib.crc32(b.tobytes())]) for p, b in lane.send_bits.items()}
        theirs = {p: torch.zeros(1, dtype=torch.int64) for p in lane.receive_bits}
        transport.exchange(f"tables of {name}", 7 + 8 * number, mine, theirs)
        for peer, checksum in theirs.items():
            if int(checksum) != zlib.crc32(lane.receive_bits[peer].tobytes()):
                raise PeerError(
                    f"rank {transport.rank} and rank {peer} hold different bit tables for {name}; "
                    "both must apply the same plan: load it from one file on every rank"
                )
