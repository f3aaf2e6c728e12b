"""Parts that all gradient codecs share: checks, offsets of metadata, and the choice of kernels.

A payload is one uint8 buffer: codes of all segments, one after another, then float32 metadata of all segments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from wirewise import rng
from wirewise.codec.gradients.kernels import reference
from wirewise.codec.gradients.segments import Segments
from wirewise.codec.kernels import IMPLEMENTATIONS, resolve_implementation
from wirewise.errors import CodecError, InputError

__all__ = [
    "IMPLEMENTATIONS",
    "Draw",
    "Feedback",
    "GradientCodec",
    "Memory",
    "check_ratio",
    "get_floats",
    "put_floats",
    "rows_of",
]

Memory = Tensor | Sequence[Tensor]
"""Error-feedback state of a group: float32 [d], the first of its `memories`, or one [d] for each of them, as a list or
the rows of a tensor."""


Feedback = Tensor | None
"""Memory of a codec that keeps one buffer, float32 [d]; None if it works without feedback."""


class Draw(NamedTuple):
    """Uses of random numbers, each with its own key."""

    seed: int
    step: int
    rank: int = 0

    @property
    def own_key(self) -> int:
        """Key of this rank's rounding, so that rounding errors are independent across ranks."""
        return rng.stream_key(self.seed, self.step, self.rank)

    @property
    def shared_key(self) -> int:
        """Key of random numbers that all ranks share."""
        return rng.stream_key(self.seed, self.step)


class GradientCodec(ABC):
    """Codec that encodes a flat group of gradients into one buffer, and decodes and sums the payloads of all ranks.

    Args:
        implementation: One of `IMPLEMENTATIONS`; all write the same bytes, except for matrix products, which agree to
            rounding.

    Attributes:
        memories: Error-feedback state kept between steps, one buffer of the group's size each: "residual" (what was
            not sent), "momentum", "factor". Given only the first, a codec of several does plain error feedback.
        wire_dtype: Type under which an all-reduce can sum payloads. None if they must be gathered.
        rounds: Parts of a payload, each of which needs the sum of the one before.
        looks_first: Whether encoding with a memory makes an extra pass over the gradient to check that it is finite,
            which `checked` saves. A pass that also finds a scale cannot be saved.

    A payload of several rounds is encoded on every rank as follows::

        codec.encode(gradient, memory, segments, out)           # writes part 0
        for number, part in enumerate(codec.parts(segments)):
            all_reduce(out[part].view(codec.wire_dtype))
            codec.advance(number, out, gradient, memory, segments)     # writes part number + 1, if there is one
        codec.decode_sum([out], segments, gradient, scale=1 / ranks)

    Without the all-reduce the payload holds this rank's contribution alone, and payloads may be gathered.
    """

    memories: tuple[str, ...] = ("residual",)
    wire_dtype: ClassVar[torch.dtype | None] = None
    rounds: ClassVar[int] = 1
    looks_first: ClassVar[bool] = False

    def __init__(self, *, implementation: str = "auto") -> None:
        if implementation not in IMPLEMENTATIONS:
            raise InputError(f"implementation is {implementation!r}, expected one of {IMPLEMENTATIONS}")
        self.implementation = implementation

    @property
    def memory(self) -> str | None:
        """First of `memories`. None if the codec has none."""
        return self.memories[0] if self.memories else None

    @property
    def linear(self) -> bool:
        """Whether the sum of payloads, viewed as `wire_dtype`, encodes the sum of their gradients."""
        return self.wire_dtype is not None

    @abstractmethod
    def size_bytes(self, segments: Segments) -> int:
        """Size of a payload, in bytes."""

    def _look(self, kernels: ModuleType, gradient: Tensor, memory: Any, segments: Segments) -> int:
        """First segment that is not finite, or -1: refused before the memory is written."""
        if memory is None or not self.looks_first:
            return -1
        return kernels.first_not_finite(gradient, None, segments)

    @abstractmethod
    def _encode(self, gradient: Tensor, memory: Any, segments: Segments, out: Tensor, draw: Draw) -> int:
        """Encode; returns the first segment that is not finite, or -1."""

    @abstractmethod
    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        """Decode the rows of `payloads` and write the scaled sum."""

    def parts(self, segments: Segments) -> tuple[slice, ...]:
        """Byte ranges of the payload, one for each round."""
        return (slice(0, self.size_bytes(segments)),)

    def _advance(
        self, number: int, payload: Tensor, gradient: Tensor, memory: Any, segments: Segments
    ) -> None:
        """Continue after a round; nothing to do where there is only one."""
        return

    def encode(
        self,
        gradient: Float[Tensor, " d"],
        memory: Memory | None,
        segments: Segments,
        out: UInt8[Tensor, " bytes"],
        *,
        seed: int = 0,
        step: int = 0,
        rank: int = 0,
        checked: bool = False,
    ) -> None:
        """Encode gradient + memory, and keep the unsent remainder in `memory` (Signum: the momentum).

        Args:
            gradient: Flat group, float32 [d].
            memory: `Memory` of the codec, updated in place. None for no error feedback.
            segments: Segments of d elements.
            out: Payload, uint8 [size_bytes(segments)]; the part of the first round is written in full.
            seed: Seed that is the same on all ranks.
            step: Training step; random draws differ between steps.
            rank: Rank, for independent rounding errors; shared random numbers do not depend on it.
            checked: True if the caller has checked that the gradient is finite (`copy_checked`), which saves CPU
                kernels a pass before they update the memory. Results are bit-identical.

        Raises:
            CodecError: A tensor does not fit, or a segment (with memory) holds NaN or infinity: then `memory` is as it
                was (undefined, if the gradient was declared checked), `out` is undefined, and the caller may skip the
                step.
        """
        self._check_floats("gradient", gradient, segments)
        if memory is not None:
            self._check_memory(memory, gradient, segments)
        _check_bytes("out", out, self.size_bytes(segments), 1)
        gradient, kernels = gradient.detach(), self._kernels(gradient.device)
        known = checked and kernels.REFUSES_LATE
        bad = -1 if known else self._look(kernels, gradient, memory, segments)
        if bad < 0:
            bad = self._encode(gradient, memory, segments, out, Draw(seed, step, rank))
        if bad >= 0:
            what = "the gradient" if memory is None else "the gradient plus memory"
            kept = "undefined, for it was said to be checked" if known and memory is not None else "unchanged"
            raise CodecError(
                f"{segments.describe(bad)} holds NaN or infinity in {what}, expected finite values; the memory is "
                f"{kept}: skip the step, or look for a diverging loss"
            )

    def advance(
        self,
        number: int,
        payload: UInt8[Tensor, " bytes"],
        gradient: Float[Tensor, " d"],
        memory: Memory | None,
        segments: Segments,
    ) -> None:
        """Write the next round after part `number` of the payload was all-reduced in place; see the class.

        Args:
            number: Number of the round, from 0 to rounds - 1.
            payload: Payload that `encode` wrote, uint8 [size_bytes(segments)].
            gradient: Flat group that `encode` was given, unchanged since.
            memory: Memory that `encode` was given, unchanged since.
            segments: Segments of the group.

        Raises:
            CodecError: A tensor does not fit.
        """
        self._check_floats("gradient", gradient, segments)
        if memory is not None:
            self._check_memory(memory, gradient, segments)
        _check_bytes("payload", payload, self.size_bytes(segments), 1)
        self._advance(number, payload, gradient.detach(), memory, segments)

    def decode_sum(
        self,
        payloads: UInt8[Tensor, "n bytes"] | Sequence[UInt8[Tensor, " bytes"]],
        segments: Segments,
        out: Float[Tensor, " d"],
        *,
        scale: float = 1.0,
        seed: int = 0,
        step: int = 0,
    ) -> None:
        """Write `scale` times the sum of the decoded payloads, added up in their order: the same bits on all ranks.

        Args:
            payloads: Payloads in rank order; a matrix, as all-gather leaves it, is read in place, a list is copied.
            segments: Segments that the senders had.
            out: Flat group, float32 [d]; written in full.
            scale: Factor of the sum, for example 1 / ranks.
            seed: Seed that the senders had.
            step: Step that the senders had.

        Raises:
            CodecError: A tensor does not fit, or a payload is corrupt.
        """
        self._check_floats("out", out, segments)
        rows = payloads if isinstance(payloads, Tensor) else torch.stack(list(payloads))
        _check_bytes("payloads", rows, self.size_bytes(segments), 2)
        self._decode(rows, segments, out.detach(), scale, Draw(seed, step))

    def _kernels(self, device: torch.device) -> ModuleType:
        name = resolve_implementation(self.implementation, device)
        if name == "torch":
            return reference
        if name == "numba":
            from wirewise.codec.gradients.kernels import cpu

            return cpu
        from wirewise.codec.gradients.kernels import gpu

        gpu.check_device(device)
        return gpu

    def _check_floats(self, name: str, value: Tensor, segments: Segments) -> None:
        if value.dtype != torch.float32 or value.shape != (segments.total,) or not value.is_contiguous():
            raise CodecError(
                f"{name} is {value.dtype} {tuple(value.shape)}, expected contiguous float32 ({segments.total},)"
            )

    def _check_memory(self, memory: Memory, gradient: Tensor, segments: Segments) -> None:
        if not self.memories:
            raise CodecError(f"{type(self).__name__} keeps no memory between steps, got one; pass None")
        rows = rows_of(memory)
        if len(rows) not in (1, len(self.memories)):
            raise CodecError(
                f"got {len(rows)} buffers of memory, {type(self).__name__} keeps {' and '.join(self.memories)}: "
                f"expected 1 or {len(self.memories)} of {segments.total} elements"
            )
        for row in rows:
            self._check_floats("memory", row, segments)
            if row.device != gradient.device:
                raise CodecError(
                    f"memory is on {row.device}, the gradient on {gradient.device}; expected one device"
                )


def rows_of(memory: Memory) -> tuple[Tensor, ...]:
    """Buffers of a memory, [d] each."""
    return (memory,) if isinstance(memory, Tensor) and memory.dim() == 1 else tuple(memory)


def _check_bytes(name: str, value: Tensor, size: int, dim: int) -> None:
    fits = value.dtype == torch.uint8 and value.dim() == dim and value.shape[-1] == size and len(value)
    if not fits or not value.is_contiguous():
        raise CodecError(
            f"{name} is {value.dtype} {tuple(value.shape)}, expected {dim}-D contiguous uint8 with {size} bytes "
            "a payload; all ranks must use the same codec, options and segments"
        )


def check_ratio(ratio: float) -> float:
    """Return the fraction of elements to keep, if it is valid."""
    if not 0.0 < ratio <= 1.0:
        raise InputError(f"ratio is {ratio}; expected a share above 0 and at most 1, for example 0.01")
    return float(ratio)


def put_floats(out: UInt8[Tensor, " bytes"], start: int, values: Float[Tensor, " s"]) -> None:
    """Write float32 numbers at a byte offset, which may be unaligned."""
    out[start : start + 4 * len(values)].copy_(values.view(torch.uint8))


def get_floats(payloads: UInt8[Tensor, "n bytes"], start: int, count: int) -> Float[Tensor, "n s"]:
    """Copy float32 numbers at a byte offset of each payload, aligned."""
    values = torch.empty(len(payloads), count, device=payloads.device)
    values.view(torch.uint8).copy_(payloads[:, start : start + 4 * count])
    return values
