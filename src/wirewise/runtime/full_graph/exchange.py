"""Halo rows for any convolution, forward and backward, with compute between send and receive.

    x, ticket = exchange.start(x, layer)     # encode and send boundary rows
    ...                                      # compute on own rows while bytes are on the wire
    rows = exchange.finish(ticket)           # the halo rows, [num_halo, width]

Autograd runs the same in reverse: the gradient of `rows` is sent to the owners as soon as it is known, the gradients
of the own rows are computed meanwhile, and the peers' partial gradients are added at the end. Partial gradients are
pushed to the owners, which is also correct for directed graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.full_graph.boundary import Route
from wirewise.runtime.full_graph.clock import PhaseClock
from wirewise.runtime.full_graph.lane import Buffers, Lane
from wirewise.runtime.full_graph.modes import ExchangeMode
from wirewise.runtime.ranges import profile_range
from wirewise.runtime.transport import Transport

if TYPE_CHECKING:
    from wirewise.graph import Part
    from wirewise.runtime.full_graph.neighbourhood import Neighbourhood
    from wirewise.runtime.pipeline.messages import MessageJournal

__all__ = ["HaloExchange", "Ticket"]

_LANES_PER_LAYER = 8
_MAX_LAYERS = 32


@dataclass
class Ticket:
    """Started exchange, to be passed to `finish`."""

    layer: int
    width: int
    dtype: torch.dtype
    token: Tensor
    """Empty tensor that ties `finish` to `start` in the autograd graph."""
    kept: Tensor | None = None
    """Halo rows received earlier, for a recomputed forward pass, which sends nothing."""


class HaloExchange:
    """Exchange of boundary rows between the parts of a graph.

    Args:
        part: This rank's part.
        transport: Messages between the ranks.
        mode: Format of the rows on the wire.
        seed: Seed of stochastic rounding and boundary sampling.
        member: Number that distinguishes exchanges in one process group.
        device: Device of the rows.
        dtype: Dtype of the rows, float32 or float64; rows of the other dtype have separate lanes. float64 rows are
            sent unquantized in every mode.
        clock: Clock that accumulates the time of the phases.
        journal: Log of training messages, also with those of an earlier run.
    """

    def __init__(
        self,
        part: Part,
        transport: Transport,
        mode: ExchangeMode,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        member: int = 0,
        clock: PhaseClock | None = None,
        journal: MessageJournal | None = None,
    ) -> None:
        if part.num_parts != transport.world_size or part.rank != transport.rank:
            raise InputError(
                f"part {part.rank} of {part.num_parts} was given to rank {transport.rank} of "
                f"{transport.world_size}; partition the graph for as many parts as there are ranks"
            )
        self.part, self.transport, self.mode = part, transport, mode
        self.seed, self.member, self.journal = seed, member, journal
        self.device, self.dtype = torch.device(device), dtype
        self.clock = clock or PhaseClock()
        self.epoch = 0
        self.training = True
        self.tracing = mode.traced
        self.evaluation_bits = 32 if mode.bits in (16, 32) else 8
        self.lanes: dict[str, Lane] = {}
        self._buffers: dict[tuple[int, torch.dtype], Buffers] = {}
        self.new_lane: Callable[[Lane], None] = Lane.set_static_bits
        """Gives a new training lane its first bits."""
        self.forward_route = self._forward_route()
        self.backward_route = (
            self._pull_route() if mode.backward == "pull" else self.forward_route.reversed(*self._halo_rows())
        )

    def _forward_route(self) -> Route:
        part = self.part
        rows, ids, counts = {}, {}, {}
        for peer in self.transport.peers:
            sent = part.send_index[part.send_offsets[peer] : part.send_offsets[peer + 1]].astype(np.int64)
            rows[peer] = torch.from_numpy(sent).to(self.device)
            ids[peer] = part.own_ids[sent]
            counts[peer] = int(part.halo_offsets[peer + 1] - part.halo_offsets[peer])
        return Route(rows, ids, counts, owner_sends=True)

    def _pull_route(self) -> Route:
        """Gradients of the outputs of marginal nodes go where the rows of these nodes went."""
        first, route = self.part.num_central, self.forward_route
        rows = {p: r - first for p, r in route.send_rows.items()}
        if any(len(r) and int(r.min()) < 0 for r in rows.values()):
            raise InputError(
                "backward='pull' needs an undirected graph: a central node has a remote out-neighbour. "
                "Use a mode with backward='push'"
            )
        return Route(rows, route.send_ids, route.receive_counts, owner_sends=True)

    def _halo_rows(self) -> tuple[dict[int, Tensor], dict[int, np.ndarray]]:
        rows, ids = {}, {}
        for peer in self.transport.peers:
            low, high = int(self.part.halo_offsets[peer]), int(self.part.halo_offsets[peer + 1])
            rows[peer] = torch.arange(low, high, device=self.device)
            ids[peer] = self.part.halo_ids[low:high]
        return rows, ids

    def lane(self, direction: str, layer: int, width: int, dtype: torch.dtype | None = None) -> Lane:
        """Lane of one layer in one direction ("forward", "backward" or "evaluate"), created on first use."""
        bits, dtype = self.evaluation_bits, dtype or self.dtype
        if dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"layer {layer} got rows of type {dtype}; expected torch.float32 or torch.float64"
            )
        name = f"{direction}{layer}" if direction != "evaluate" else f"evaluate{layer}-{bits}"
        if dtype != self.dtype:
            name += f"-{str(dtype).removeprefix('torch.')}"
        if name not in self.lanes:
            self.lanes[name] = self._new_lane(name, direction, layer, width, dtype)
        lane = self.lanes[name]
        if lane.width != width:
            raise InputError(
                f"{name} carried rows of width {lane.width} and now got width {width}; "
                "give each convolution its own layer number"
            )
        return lane

    def _new_lane(self, name: str, direction: str, layer: int, width: int, dtype: torch.dtype) -> Lane:
        if not 0 <= layer < _MAX_LAYERS:
            raise InputError(f"layer {layer} is out of range; expected 0 to {_MAX_LAYERS - 1}")
        kinds = {"forward": 0, "backward": 1, "evaluate": 2 + (self.evaluation_bits == 32)}
        kind = kinds[direction] + (4 if dtype != self.dtype else 0)
        number = (self.member * _MAX_LAYERS + layer) * _LANES_PER_LAYER + kind
        mode = self.mode
        if direction == "evaluate":
            mode = ExchangeMode(name=mode.name, bits=self.evaluation_bits, stochastic=False)
        lane = Lane(
            name,
            number,
            width,
            self.backward_route if direction == "backward" else self.forward_route,
            self.transport,
            mode,
            self.clock,
            seed=self.seed,
            dtype=dtype,
            device=self.device,
            journal=self.journal if direction != "evaluate" else None,
            shared=self._buffers.setdefault((layer, dtype), Buffers())
            if self.mode.shares_buffers and self.journal is None
            else None,
        )
        if direction == "evaluate":
            lane.set_static_bits()
        else:
            self.new_lane(lane)
        return lane

    def start(
        self,
        x: Float[Tensor, "own d"],
        layer: int,
        *,
        neighbourhood: Neighbourhood | None = None,
        cached_rows: Tensor | None = None,
    ) -> tuple[Float[Tensor, "own d"], Ticket]:
        """Encode and send the boundary rows of `x`.

        Use the returned `x` (not the given one) for everything computed on own rows: its gradient is complete
        only when the partial gradients of the peers have been added.

        Args:
            x: Own rows, central first.
            layer: Index of the convolution in the model.
            neighbourhood: Aggregation that will `finish` this exchange; required with backward="pull".
            cached_rows: Halo rows of the earlier call if a forward pass is recomputed; only gradients are sent then.

        Raises:
            CodecError: A message holds NaN or infinity.
            PeerError: A peer is gone.
        """
        if x.shape[0] != self.part.num_own:
            raise InputError(
                f"layer {layer} got {x.shape[0]} rows; expected the {self.part.num_own} own rows of part "
                f"{self.part.rank}, central rows first"
            )
        with profile_range("halo: send"):
            own, token = _Start.apply(x, self, layer, neighbourhood, cached_rows is None)
        return own, Ticket(layer, x.shape[1], x.dtype, token, cached_rows)

    def finish(self, ticket: Ticket) -> Float[Tensor, "halo d"]:
        """The halo rows, [num_halo, width], in the order of `part.halo_ids`."""
        if self.mode.backward == "pull":
            raise InputError(
                f"mode {self.mode.name} returns output gradients (pull), which needs a linear aggregation; "
                "use the built-in layers or a mode with push"
            )
        with profile_range("halo: receive"):
            return _Finish.apply(ticket.token, self, ticket)

    def __call__(self, x: Float[Tensor, "own d"], layer: int) -> tuple[Tensor, Float[Tensor, "halo d"]]:
        """Own rows and halo rows, without computing in between."""
        own, ticket = self.start(x, layer)
        return own, self.finish(ticket)

    def forward_lane(self, layer: int, width: int, dtype: torch.dtype | None = None) -> Lane:
        """Lane that currently carries activations: of training or of evaluation."""
        return self.lane("forward" if self.training else "evaluate", layer, width, dtype)

    def post_gradients(self, layer: int, grad: Float[Tensor, "rows d"]) -> None:
        """Send gradients: of halo rows to their owners (push) or of outputs to the holders (pull)."""
        lane = self.lane("backward", layer, grad.shape[1], grad.dtype)
        lane.post(grad, self.epoch, trace=self.tracing, wait=not self.mode.overlap)
        self.clock.push("central")

    @property
    def posted(self) -> int:
        """Number of exchanges started by this rank; in each it waits for all neighbours."""
        return sum(lane.posted for lane in list(self.lanes.values()))

    def drain(self) -> None:
        """Wait for everything in flight, so that nothing is left for a later exchange."""
        for lane in self.lanes.values():
            lane.drain()

    def training_lanes(self) -> dict[str, Lane]:
        """Lanes of training, by name."""
        return {n: lane for n, lane in sorted(self.lanes.items()) if not n.startswith("evaluate")}


class _Start(torch.autograd.Function):
    """Send boundary rows; backward: add what the holders of the halo rows return."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        exchange: HaloExchange,
        layer: int,
        neighbourhood: Neighbourhood | None,
        sends: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.exchange, ctx.layer, ctx.neighbourhood = exchange, layer, neighbourhood
        if not sends:
            return x.view_as(x), x.new_empty(())
        lane = exchange.forward_lane(layer, x.shape[1], x.dtype)
        tracing = exchange.tracing and exchange.training
        lane.post(x.detach().contiguous(), exchange.epoch, trace=tracing, wait=not exchange.mode.overlap)
        exchange.clock.push("central")
        return x.view_as(x), x.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        exchange: HaloExchange = ctx.exchange
        lane = exchange.lane("backward", ctx.layer, grad.shape[1], grad.dtype)
        grad = grad.clone(memory_format=torch.contiguous_format)
        exchange.clock.pop()
        pull = exchange.mode.backward == "pull"
        for received in lane.collect():
            if pull:
                received.aggregate(
                    ctx.neighbourhood.reversed_of(received.peer), grad[exchange.part.num_central :]
                )
            else:
                received.add(exchange.forward_route.send_rows[received.peer], grad)
        return grad, None, None, None, None


class _Finish(torch.autograd.Function):
    """Collect halo rows; backward: return their partial gradients to the owners."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: HaloExchange, ticket: Ticket) -> Tensor:
        ctx.exchange, ctx.layer = exchange, ticket.layer
        if ticket.kept is not None:
            return ticket.kept.clone()
        exchange.clock.pop()
        lane = exchange.forward_lane(ticket.layer, ticket.width, ticket.dtype)
        # Stale and skipped rows start as zeros.
        make = torch.zeros if exchange.mode.stale or exchange.mode.skip_limit else torch.empty
        halo = make(exchange.part.num_halo, ticket.width, dtype=ticket.dtype, device=exchange.device)
        offsets = exchange.part.halo_offsets
        for received in lane.collect():
            received.write(halo[int(offsets[received.peer]) : int(offsets[received.peer + 1])])
        return halo

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        exchange: HaloExchange = ctx.exchange
        exchange.post_gradients(ctx.layer, grad.contiguous())
        return grad.new_zeros(()), None, None
