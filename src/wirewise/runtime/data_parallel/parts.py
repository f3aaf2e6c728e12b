"""Range of a gradient group as one payload, with a flag for non-finite values."""

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
    """Report of a non-finite gradient."""

    rank: int
    """Rank that found it, or -1 if the sum over the ranks is not finite."""
    place: int
    """Index of the parameter (`Pools.place`)."""

    @staticmethod
    def from_rows(rows: Tensor) -> list[NonfiniteGradient]:
        """Non-finite gradients reported by payloads, uint8 [n, bytes]."""
        ends = rows[:, -PayloadCodec.FLAG_BYTES :].clone(memory_format=torch.contiguous_format)
        flags = ends.view(torch.int32).tolist()
        return [NonfiniteGradient(rank, place - 1) for rank, place in flags if place]

    @staticmethod
    def of_sum(flat: Tensor, names: Sequence[str], pools: Pools) -> list[NonfiniteGradient]:
        """Non-finite gradient in an unencoded sum; only searched for if the step may be skipped."""
        if pools.compression.nonfinite == "raise" or flat.isfinite().all():
            return []
        return [NonfiniteGradient.locate_nonfinite(flat, names, pools)]

    @staticmethod
    def locate_nonfinite(flat: Tensor, names: Sequence[str], pools: Pools) -> NonfiniteGradient:
        """Find the parameter of a sum that is not finite."""
        members = [pools.member(name) for name in names]
        return NonfiniteGradient(-1, members[_first_bad(flat, [member.size for member in members])].place)


class PayloadCodec:
    """Codec of elements `begin` to `end` of a group; a payload is the codec's, then a flag of 8 bytes.

    Args:
        codec: Codec of the group.
        compression: Options with block and seed.
        members: Members of the group, [t]; their shapes are used if none of them is split.
        begin: Index of the first element.
        end: End of the elements, exclusive.
        share: Index of the shard; random numbers of different shards of a tensor are independent.
        shares: Number of shards.
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
        """Allocate memory for a payload, uint8 [size_bytes]."""
        return torch.zeros(self.size_bytes, dtype=torch.uint8, device=device)

    def encode(
        self,
        values: Tensor,
        memory: list[Tensor] | None,
        out: Tensor,
        step: int,
        rank: int,
        *,
        reencoded: bool = False,
        whole: bool = True,
        checked: bool = False,
    ) -> None:
        """Encode [elements]; a non-finite value leaves `memory` unchanged and sets the flag.

        Args:
            values: Elements to encode, float32.
            memory: Error-feedback state of these elements. None if there is none (see `GradientCodec.encode`).
            out: Payload to write, uint8 [size_bytes].
            step: Step of the training.
            rank: Index of this rank.
            reencoded: Whether these are sums that were encoded before, which need different random numbers.
            whole: Whether all rounds follow at once, without sums over the ranks in between.
            checked: Whether the values are known to be finite (see `GradientCodec.encode`).
        """
        out[-self.FLAG_BYTES :].zero_()
        if self._segments is None:
            return
        codes, kept = out[: -self.FLAG_BYTES], self._memory(memory)
        draws = {"seed": self._seed + reencoded, "step": step, "rank": rank}
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

    def encode_again(
        self, values: Tensor, residual: Tensor | None, out: Tensor, step: int, rank: int
    ) -> None:
        """Encode sums, [elements], plus the unsent remainder of earlier ones, by a codec with any memories."""
        if residual is None or len(self.codec.memories) == 1:
            self.encode(values, None if residual is None else [residual], out, step, rank, reencoded=True)
            return
        values += residual
        self.encode(values, None, out, step, rank, reencoded=True)
        if not self.fault_of(out):
            self.decode(self.codes(out[None]), residual, -1.0, step, reencoded=True)
            residual += values

    def rounds(self) -> list[slice]:
        """Byte range of a payload summed in each round."""
        return [] if self._segments is None else list(self.codec.parts(self._segments))

    def advance(self, number: int, payload: Tensor, values: Tensor, memory: list[Tensor] | None) -> None:
        """Write the next round; values and memory are those passed to `encode`, unchanged since."""
        if self._segments is not None and self.codec.rounds > 1:
            codes = payload[: -self.FLAG_BYTES]
            self.codec.advance(number, codes, values, self._memory(memory), self._segments)

    def _memory(self, memory: list[Tensor] | None) -> Memory | None:
        """Memory as `GradientCodec.encode` takes it."""
        return memory[0] if memory is not None and len(memory) == 1 else memory

    def decode(self, codes: Tensor, out: Tensor, scale: float, step: int, *, reencoded: bool = False) -> None:
        """Write the scaled sum of payloads without their flags, uint8 [n, bytes], to float32 [elements]."""
        if self._segments is not None:
            seed = self._seed + reencoded
            self.codec.decode_sum(codes, self._segments, out, scale=scale, seed=seed, step=step)

    def codes(self, rows: Tensor) -> Tensor:
        """Payloads without their flags, uint8 [n, bytes]; a view for a single payload."""
        return rows[:, : -self.FLAG_BYTES].contiguous()

    def flag(self, payload: Tensor, fault: NonfiniteGradient) -> None:
        """Write a fault to a payload's flag."""
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
