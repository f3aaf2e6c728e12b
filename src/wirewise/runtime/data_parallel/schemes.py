"""Schemes to exchange the payloads of a group, each in three phases.

`encode` runs on the thread of back-propagation, `travel` on that of communication, and `decode` where the plan says.
Every rank decodes the same payloads in the same order, so all hold the same bits.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wirewise.runtime.data_parallel.exchanges import Exchanges
from wirewise.runtime.data_parallel.parts import NonfiniteGradient, PayloadCodec
from wirewise.runtime.data_parallel.pools import Pools

if TYPE_CHECKING:
    from wirewise.codec.gradients import GradientCodec

__all__ = ["SCHEMES", "Scheme", "TensorGroup"]


@dataclass(frozen=True)
class TensorGroup:
    """Parameters whose gradients are communicated together."""

    names: tuple[str, ...]
    pools: Pools
    codec: GradientCodec | None
    rank: int
    world_size: int
    chunks: int = 1
    sum_up: Callable[[Tensor], None] | None = None
    """Replacement for the process group's all-reduce of uncompressed gradients."""

    @property
    def total(self) -> int:
        """Number of elements."""
        return sum(self.pools.member(name).size for name in self.names)

    def part(self, begin: int, end: int, share: int = 0, shares: int = 1) -> PayloadCodec:
        """Make the payload codec of a range of the elements."""
        assert self.codec is not None
        members = [self.pools.member(name) for name in self.names]
        return PayloadCodec(self.codec, self.pools.compression, members, begin, end, share, shares)

    def cuts(self, shares: int) -> list[tuple[int, int]]:
        """First element and end of shards of about equal size."""
        return list(itertools.pairwise(self.total * share // shares for share in range(shares + 1)))


class Scheme(ABC):
    """Exchange of one group under one scheme; its buffers are reused in every step."""

    def __init__(self, group: TensorGroup) -> None:
        self.group, self.pools = group, group.pools
        self.faults: list[NonfiniteGradient] = []
        """Values that were not finite in this step, the same on all ranks once it has travelled."""

    @abstractmethod
    def encode(self, flat: Tensor, checked: bool = False) -> None:
        """Encode the gradients, [elements], plus error-feedback state; `checked` means they are known to be finite."""

    @abstractmethod
    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        """Run all collectives, with encoding and decoding in between."""

    def decode(self, flat: Tensor) -> None:  # noqa: B027 - what travels uncompressed is there already
        """Write the mean over the ranks."""

    def _settle(self) -> None:
        """Move what is owed as the owner of shares, now that the group has none, to the residual."""
        if (owed := self.pools.take("owner", self.group.names)) is not None:
            self.pools.group("residual", self.group.names).add_(owed)

    def _send_all(self, flat: Tensor) -> None:
        """Add the residual, and forget it: it travels whole."""
        self._settle()
        if (waiting := self.pools.take("residual", self.group.names)) is not None:
            flat.add_(waiting)


class Uncompressed(Scheme):
    """All-reduce of the gradients, with the unsent remainders of an earlier plan."""

    def encode(self, flat: Tensor, checked: bool = False) -> None:
        self._send_all(flat)
        flat.div_(self.group.world_size)

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        for piece in flat.tensor_split(self.group.chunks):
            if piece.numel() and self.group.sum_up is None:
                exchanges.all_reduce(piece)
            elif piece.numel() and self.group.sum_up is not None:
                self.group.sum_up(piece)
        self.faults = NonfiniteGradient.of_sum(flat, self.group.names, self.pools)


class UncompressedGather(Scheme):
    """All-gather of the gradients, which every rank sums in rank order: one round, for gradients of few bytes."""

    def encode(self, flat: Tensor, checked: bool = False) -> None:
        self._send_all(flat)
        flat.div_(self.group.world_size)

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        # Not `sum(0)`, whose order of addition may depend on the shape.
        first, *others = exchanges.all_gather(flat)
        for row in others:
            first += row
        flat.copy_(first)
        self.faults = NonfiniteGradient.of_sum(flat, self.group.names, self.pools)


class UncompressedShares(UncompressedGather):
    """Reduction of one shard of the gradients per rank, in rank order, then all-gather of the shards."""

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        ranks, own = list(range(self.group.world_size)), self.group.rank
        cuts = self.group.cuts(len(ranks))
        share = _scatter_sum(flat, cuts, ranks, own, exchanges)
        # Shares differ by an element, and an all-gather takes equal ones.
        padded = flat.new_zeros(max(end - begin for begin, end in cuts))
        padded[: len(share)] = share
        for (begin, end), row in zip(cuts, exchanges.all_gather(padded), strict=True):
            flat[begin:end] = row[: end - begin]
        self.faults = NonfiniteGradient.of_sum(flat, self.group.names, self.pools)


class AllReducePayloads(Scheme):
    """All-reduce of payloads that can be summed."""

    def __init__(self, group: TensorGroup) -> None:
        super().__init__(group)
        self._part = group.part(0, group.total)
        self._payload = self._part.buffer(self.pools.device)

    def encode(self, flat: Tensor, checked: bool = False) -> None:
        self._settle()
        self._memory = self.pools.memory(self._part.codec, self.group.names)
        draws = self.pools.step, self.group.rank
        self._part.encode(flat, self._memory, self._payload, *draws, whole=False, checked=checked)

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        wire = self._part.codec.wire_dtype
        assert wire is not None
        if self._part.fault_of(self._payload):
            self._part.codes(self._payload[None])[0].view(wire).fill_(torch.nan)
        self.faults = []
        for number, part in enumerate(self._part.rounds()):
            values = self._payload[part].view(wire)
            # Small matrices have nothing left to send in the second round.
            if values.numel():
                exchanges.all_reduce(values)
            if not _finite(values):
                # All ranks see it, so all come here.
                told = NonfiniteGradient.from_rows(exchanges.all_gather(self._part.flag_of(self._payload)))
                self.faults = self._found(flat, told)
                return
            self._part.advance(number, self._payload, flat, self._memory)

    def _found(self, flat: Tensor, told: list[NonfiniteGradient]) -> list[NonfiniteGradient]:
        """Faults that ranks report, or values that left the range of the wire's type in the sum."""
        if not told:
            self.decode(flat)
        return told or [NonfiniteGradient.locate_nonfinite(flat, self.group.names, self.pools)]

    def decode(self, flat: Tensor) -> None:
        codes = self._part.codes(self._payload[None])
        self._part.decode(codes, flat, 1 / self.group.world_size, self.pools.step)


class AllGather(Scheme):
    """All-gather of payloads."""

    def __init__(self, group: TensorGroup) -> None:
        super().__init__(group)
        self._part = group.part(0, group.total)
        self._payload = self._part.buffer(self.pools.device)

    def encode(self, flat: Tensor, checked: bool = False) -> None:
        self._settle()
        memory = self.pools.memory(self._part.codec, self.group.names)
        self._part.encode(flat, memory, self._payload, self.pools.step, self.group.rank, checked=checked)

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        self._rows = exchanges.all_gather(self._payload)
        self.faults = NonfiniteGradient.from_rows(self._rows)

    def decode(self, flat: Tensor) -> None:
        rows = self._part.codes(self._rows)
        self._part.decode(rows, flat, 1 / self.group.world_size, self.pools.step)


class Divisible(Scheme):
    """Each rank reduces one shard and encodes it again, with a separate residual; then all shards are gathered."""

    def __init__(self, group: TensorGroup) -> None:
        super().__init__(group)
        ranks = group.world_size
        self._cuts = group.cuts(ranks)
        self._parts = [group.part(*cut, share, ranks) for share, cut in enumerate(self._cuts)]
        self._payloads = [part.buffer(self.pools.device) for part in self._parts]
        self._second = torch.zeros(max(part.size_bytes for part in self._parts), dtype=torch.uint8)
        self._second = self._second.to(self.pools.device)
        self._owed: Tensor | None = None

    def encode(self, flat: Tensor, checked: bool = False) -> None:
        codec, names = self._parts[0].codec, self.group.names
        memory = self.pools.memory(codec, names)
        for part, (begin, end), payload in zip(self._parts, self._cuts, self._payloads, strict=True):
            kept = None if memory is None else [row[begin:end] for row in memory]
            draws = self.pools.step, self.group.rank
            part.encode(flat[begin:end], kept, payload, *draws, checked=checked)
        if memory is not None and codec.memory == "residual":
            begin, end = self._cuts[self.group.rank]
            if not self.pools.is_group("owner", names):
                self._hand_over(memory[0], begin, end)
            self._owed = self.pools.group("owner", names)[begin:end]

    def _hand_over(self, memory: Tensor, begin: int, end: int) -> None:
        """Move what is owed of shares that another rank owns now to the residual."""
        owed = self.pools.group("owner", self.group.names)
        for outside in (slice(None, begin), slice(end, None)):
            memory[outside] += owed[outside]
            owed[outside] = 0

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        rank, part = self.group.rank, self._parts[self.group.rank]
        sizes = dict.fromkeys(range(self.group.world_size), part.size_bytes)
        came = exchanges.all_to_all(dict(enumerate(self._payloads)), sizes)
        rows = torch.stack([came[source] for source in sizes])
        second = self._second[: part.size_bytes]
        if faults := NonfiniteGradient.from_rows(rows):
            part.flag(second, faults[0])
        else:
            total = flat.new_zeros(part.elements)
            part.decode(part.codes(rows), total, 1.0, self.pools.step)
            part.encode_again(total, self._owed, second, self.pools.step, rank)
        gathered = exchanges.all_gather(self._second)
        self._rows = [gathered[i : i + 1, : p.size_bytes] for i, p in enumerate(self._parts)]
        self.faults = [fault for row in self._rows for fault in NonfiniteGradient.from_rows(row)]

    def decode(self, flat: Tensor) -> None:
        for part, (begin, end), row in zip(self._parts, self._cuts, self._rows, strict=True):
            scale = 1 / self.group.world_size
            part.decode(part.codes(row), flat[begin:end], scale, self.pools.step, reencoded=True)


class Hierarchical(Scheme):
    """Reduce-scatter in the host, payloads among hosts, all-gather in the host; shards may be unequal."""

    def __init__(self, group: TensorGroup) -> None:
        super().__init__(group)
        size = self.pools.compression.host_size(group.world_size)
        first = group.rank - group.rank % size
        self._host = list(range(first, first + size))
        self._place = group.rank - first
        self._others = list(range(self._place, group.world_size, size))
        self._cuts = group.cuts(size)
        self._memory: list[Tensor] | None = None
        if group.codec is not None:
            self._part = group.part(*self._cuts[self._place], self._place, size)
            self._payload = self._part.buffer(self.pools.device)

    def encode(self, flat: Tensor, checked: bool = False) -> None:
        codec, (begin, end) = self.group.codec, self._cuts[self._place]
        if codec is None or (codec.memory == "residual" and "momentum" not in codec.memories):
            self._send_all(flat)
        memory = None if codec is None else self.pools.memory(codec, self.group.names)
        self._memory = None if memory is None else [row[begin:end] for row in memory]

    def travel(self, flat: Tensor, exchanges: Exchanges) -> None:
        own = _scatter_sum(flat, self._cuts, self._host, self._place, exchanges)
        flag = torch.zeros(PayloadCodec.FLAG_BYTES, dtype=torch.uint8, device=flat.device)
        if self.group.codec is not None:
            flag = self._among_hosts(own, exchanges)
        elif len(self._others) > 1:
            self._sum_among_hosts(own, exchanges)
        message = torch.cat([own.view(torch.uint8), flag])
        width = flat.element_size()
        sizes = {
            r: (end - begin) * width + len(flag)
            for r, (begin, end) in zip(self._host, self._cuts, strict=True)
        }
        came = exchanges.all_to_all(dict.fromkeys(self._host, message), sizes)
        for row, (begin, end) in zip(came.values(), self._cuts, strict=True):
            flat[begin:end].view(torch.uint8).copy_(row[: -len(flag)])
        self.faults = [fault for row in came.values() for fault in NonfiniteGradient.from_rows(row[None])]
        if self.group.codec is None:
            flat.div_(self.group.world_size)
            self.faults = NonfiniteGradient.of_sum(flat, self.group.names, self.pools)

    def _among_hosts(self, own: Tensor, exchanges: Exchanges) -> Tensor:
        part = self._part
        part.encode(own, self._memory, self._payload, self.pools.step, self.group.rank)
        sizes = dict.fromkeys(self._others, part.size_bytes)
        came = exchanges.all_to_all(dict.fromkeys(self._others, self._payload), sizes)
        rows = torch.stack(list(came.values()))
        faults = NonfiniteGradient.from_rows(rows)
        if faults:
            part.flag(self._payload, faults[0])
        else:
            part.decode(part.codes(rows), own, 1 / self.group.world_size, self.pools.step)
        return part.flag_of(self._payload)

    def _sum_among_hosts(self, own: Tensor, exchanges: Exchanges) -> None:
        hosts = len(self._others)
        cuts = list(itertools.pairwise(own.numel() * i // hosts for i in range(hosts + 1)))
        place = self._others.index(self.group.rank)
        part = _scatter_sum(own, cuts, self._others, place, exchanges).view(torch.uint8)
        sizes = {r: (e - b) * own.element_size() for r, (b, e) in zip(self._others, cuts, strict=True)}
        came = exchanges.all_to_all(dict.fromkeys(self._others, part), sizes)
        own.view(torch.uint8).copy_(torch.cat(list(came.values())))


def _finite(values: Tensor) -> bool:
    return not values.numel() or all(bool(end.isfinite()) for end in values.aminmax())


def _scatter_sum(
    flat: Tensor, cuts: list[tuple[int, int]], members: list[int], place: int, exchanges: Exchanges
) -> Tensor:
    """Sum over some ranks of the share at `place`, added up in their order."""
    parts = {
        rank: flat[begin:end].view(torch.uint8) for rank, (begin, end) in zip(members, cuts, strict=True)
    }
    begin, end = cuts[place]
    came = exchanges.all_to_all(parts, dict.fromkeys(members, (end - begin) * flat.element_size()))
    rows = [row.clone().view(flat.dtype) for row in came.values()]
    for row in rows[1:]:
        rows[0] += row
    return rows[0]


SCHEMES: dict[tuple[bool, str], type[Scheme]] = {
    (False, "all_reduce"): Uncompressed,
    (False, "all_gather"): UncompressedGather,
    (False, "divisible"): UncompressedShares,
    (False, "hierarchical"): Hierarchical,
    (True, "all_reduce"): AllReducePayloads,
    (True, "all_gather"): AllGather,
    (True, "divisible"): Divisible,
    (True, "hierarchical"): Hierarchical,
}
"""Schemes by whether there is a codec, and the name of the scheme in the plan."""
