"""A range of a group of gradients as one payload, and the news that something in it is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from wirewise.codec.gradients import Segments
from wirewise.errors import CodecError
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.members import ParameterSlice
from wirewise.runtime.data_parallel.pools import Pools

if TYPE_CHECKING:
    from wirewise.codec.gradients import GradientCodec
    from wirewise.codec.gradients.codec import Memory

__all__ = ["NonfiniteGradient", "PayloadCodec"]


class NonfiniteGradient(NamedTuple):
    """A gradient that is not finite."""

    rank: int
    """Rank that found it; -1: the sum over the ranks is not finite."""
    place: int
    """Number of the parameter (`Pools.place`)."""

    @staticmethod
    def from_rows(rows: Tensor) -> list[NonfiniteGradient]:
        """Faults that payloads report, uint8 [n, bytes]."""
        ends = rows[:, -PayloadCodec.FLAG_BYTES :].clone(memory_format=torch.contiguous_format)
        flags = ends.view(torch.int32).tolist()
        return [NonfiniteGradient(rank, place - 1) for rank, place in flags if place]

    @staticmethod
    def of_sum(flat: Tensor, names: Sequence[str], pools: Pools) -> list[NonfiniteGradient]:
        """The gradient that is not finite in a sum that nobody encoded; looked for only where a step may be skipped."""
        if pools.compression.nonfinite == "raise" or flat.isfinite().all():
            return []
        return [NonfiniteGradient.in_sum(flat, names, pools)]

    @staticmethod
    def in_sum(flat: Tensor, names: Sequence[str], pools: Pools) -> NonfiniteGradient:
        """Which parameter of a sum is not finite."""
        members = [pools.member(name) for name in names]
        return NonfiniteGradient(-1, members[_first_bad(flat, [member.size for member in members])].place)


class PayloadCodec:
    """Encodes and decodes elements `begin` to `end` of a group; a payload is the codec's, then a flag of 8 bytes.

    Args:
        codec: Codec of the group.
        compression: Block and seed.
        members: Members of the group, [t]; their shapes are used where none of them is cut.
        begin: Number of the first element.
        end: One behind the last element.
        share: Number of the share that it is; draws of different shares of a tensor are independent.
        shares: How many there are.
    """

    FLAG_BYTES = 8

    def __init__(
        self,
        codec: GradientCodec,
        compression: Compression,
        members: Sequence[ParameterSlice],
        begin: int,
        end: int,
        share: int = 0,
        shares: int = 1,
    ) -> None:
        self.codec, self.elements, self._seed = codec, end - begin, compression.seed
        self._sizes: list[int] = []
        found, known, start = list[ParameterSlice](), [], 0
        for member in members:
            inside = min(start + member.size, end) - max(start, begin)
            if inside > 0:
                found.append(member)
                self._sizes.append(inside)
            if inside == member.size and member.shape is not None:
                known.append(member.shape)
            start += member.size
        self._places = [member.place for member in found]
        self._segments: Segments | None = None
        if found:
            self._segments = Segments(
                self._sizes,
                ids=[place * shares + share for place in self._places],
                block=compression.block,
                shapes=known if len(known) == len(found) else None,
                # Number of the first block in the parameter; without a block each piece is one.
                firsts=[m.begin // compression.block if compression.block else m.number for m in found],
            )
        self.size_bytes = self.FLAG_BYTES
        if self._segments is not None:
            self.size_bytes += codec.size_bytes(self._segments)

    def buffer(self, device: torch.device) -> Tensor:
        """Memory for a payload, uint8 [size_bytes]."""
        return torch.zeros(self.size_bytes, dtype=torch.uint8, device=device)

    def encode(
        self,
        values: Tensor,
        memory: list[Tensor] | None,
        out: Tensor,
        step: int,
        rank: int,
        *,
        again: bool = False,
        whole: bool = True,
        checked: bool = False,
    ) -> None:
        """Encode [elements]; what is not finite leaves `memory` as it was and sets the flag.

        Args:
            values: Elements to encode, float32.
            memory: What the codec remembers of these elements; None: nothing (see `GradientCodec.encode`).
            out: Payload to write, uint8 [size_bytes].
            step: Step of training.
            rank: Number of this rank.
            again: Whether these are sums that were encoded before, so that draws are others.
            whole: Whether all rounds follow at once, without sums over the ranks between them.
            checked: Whether the values were seen to be finite (see `GradientCodec.encode`).
        """
        out[-self.FLAG_BYTES :].zero_()
        if self._segments is None:
            return
        codes, kept = out[: -self.FLAG_BYTES], self._memory(memory)
        draws = {"seed": self._seed + again, "step": step, "rank": rank}
        try:
            self.codec.encode(values, kept, self._segments, codes, **draws, checked=checked)
        except CodecError:
            bad = _first_bad(values if memory is None else values + memory[0], self._sizes)
            if bad < 0:
                raise
            self.flag(out, NonfiniteGradient(rank, self._places[bad]))
            return
        for number in range(self.codec.rounds if whole else 0):
            self.advance(number, out, values, memory)

    def encode_again(self, values: Tensor, owed: Tensor | None, out: Tensor, step: int, rank: int) -> None:
        """Encode sums, [elements], with what was not sent of those before, by a codec with whatever memories."""
        if owed is None or len(self.codec.memories) == 1:
            self.encode(values, None if owed is None else [owed], out, step, rank, again=True)
            return
        values += owed
        self.encode(values, None, out, step, rank, again=True)
        if not self.fault_of(out):
            self.decode(self.codes(out[None]), owed, -1.0, step, again=True)
            owed += values

    def rounds(self) -> list[slice]:
        """Bytes of a payload that each round sums up."""
        return [] if self._segments is None else list(self.codec.parts(self._segments))

    def advance(self, number: int, payload: Tensor, values: Tensor, memory: list[Tensor] | None) -> None:
        """Go on after a round; values and memory are those that `encode` was given, unchanged since."""
        if self._segments is not None and self.codec.rounds > 1:
            codes = payload[: -self.FLAG_BYTES]
            self.codec.advance(number, codes, values, self._memory(memory), self._segments)

    def _memory(self, memory: list[Tensor] | None) -> Memory | None:
        """Memory as `GradientCodec.encode` takes it."""
        return memory[0] if memory is not None and len(memory) == 1 else memory

    def decode(self, codes: Tensor, out: Tensor, scale: float, step: int, *, again: bool = False) -> None:
        """Write the scaled sum of payloads without their flags, uint8 [n, bytes], to float32 [elements]."""
        if self._segments is not None:
            seed = self._seed + again
            self.codec.decode_sum(codes, self._segments, out, scale=scale, seed=seed, step=step)

    def codes(self, rows: Tensor) -> Tensor:
        """Payloads without their flags, uint8 [n, bytes]; of one payload a view."""
        return rows[:, : -self.FLAG_BYTES].contiguous()

    def flag(self, payload: Tensor, fault: NonfiniteGradient) -> None:
        """Write a fault into a payload."""
        words = torch.tensor([fault.rank, fault.place + 1], dtype=torch.int32)
        payload[-self.FLAG_BYTES :].copy_(words.view(torch.uint8))

    def flag_of(self, payload: Tensor) -> Tensor:
        """The flag's bytes, uint8 [8]."""
        return payload[-self.FLAG_BYTES :]

    def fault_of(self, payload: Tensor) -> list[NonfiniteGradient]:
        """The fault of one payload, if it reports one."""
        return NonfiniteGradient.from_rows(payload[None])


def _first_bad(values: Tensor, sizes: Sequence[int]) -> int:
    """The first tensor that is not finite, or -1."""
    parts = values.split(list(sizes))
    return next((i for i, part in enumerate(parts) if not part.isfinite().all()), -1)
