"""What all gradient codecs share: checks, where metadata lies, and the choice of kernels.

A payload is one uint8 buffer: codes of all segments, one after another, then float32 metadata of all segments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from wirewise import rng
from wirewise.codec.gradients.kernels import reference
from wirewise.codec.gradients.segments import Segments
from wirewise.errors import CodecError, InputError

__all__ = ["IMPLEMENTATIONS", "Draw", "GradientCodec", "check_ratio", "get_floats", "put_floats"]

IMPLEMENTATIONS = ("auto", "numba", "torch")
"""auto: numba on the CPU, torch operations elsewhere."""


class Draw(NamedTuple):
    """What random numbers are for."""

    seed: int
    step: int
    rank: int = 0

    @property
    def own_key(self) -> int:
        """Key of this rank's rounding: errors of ranks are independent."""
        return rng.stream_key(self.seed, self.step, self.rank)

    @property
    def shared_key(self) -> int:
        """Key of what all ranks draw alike."""
        return rng.stream_key(self.seed, self.step)


class GradientCodec(ABC):
    """Encodes a flat group of gradients into one buffer, and decodes and adds up the payloads of all ranks.

    Args:
        implementation: One of `IMPLEMENTATIONS`; all write the same bytes.

    Attributes:
        memory: What `encode` keeps between steps: "residual" (what was not sent), "momentum", or None.
        wire_dtype: Type as which payloads can be added up by an all-reduce, or None: then they must be gathered.
    """

    memory: str | None = "residual"
    wire_dtype: ClassVar[torch.dtype | None] = None

    def __init__(self, *, implementation: str = "auto") -> None:
        if implementation not in IMPLEMENTATIONS:
            raise InputError(f"implementation is {implementation!r}, expected one of {IMPLEMENTATIONS}")
        self.implementation = implementation

    @property
    def linear(self) -> bool:
        """Whether an all-reduce of payloads, viewed as `wire_dtype`, sums what they say."""
        return self.wire_dtype is not None

    @abstractmethod
    def size_bytes(self, segments: Segments) -> int:
        """Bytes of a payload."""

    @abstractmethod
    def _encode(
        self, gradient: Tensor, memory: Tensor | None, segments: Segments, out: Tensor, draw: Draw
    ) -> int:
        """Encode; returns the first segment that is not finite, or -1."""

    @abstractmethod
    def _decode_sum(
        self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw
    ) -> None:
        """Decode the rows of `payloads` and write the scaled sum."""

    def encode(
        self,
        gradient: Float[Tensor, " d"],
        memory: Float[Tensor, " d"] | None,
        segments: Segments,
        out: UInt8[Tensor, " bytes"],
        *,
        seed: int = 0,
        step: int = 0,
        rank: int = 0,
    ) -> None:
        """Encode gradient + memory and keep in `memory` what was not sent (Signum: the momentum).

        Args:
            gradient: Flat group, float32 [d].
            memory: Of the same shape, read and written; None: without feedback.
            segments: Of d elements.
            out: Payload, uint8 [size_bytes(segments)]; written in full.
            seed: The same on all ranks.
            step: Training step; random draws differ between steps.
            rank: Ranks round independently; shared draws do not depend on it.

        Raises:
            CodecError: A tensor does not fit, or a segment (with memory) holds NaN or infinity: then `memory` is as
                it was, `out` is undefined, and the caller may skip the step.
        """
        self._check_floats("gradient", gradient, segments)
        if memory is not None:
            self._check_memory(memory, gradient, segments)
        _check_bytes("out", out, self.size_bytes(segments), 1)
        gradient = gradient.detach()
        bad = self._encode(gradient, memory, segments, out, Draw(seed, step, rank))
        if bad >= 0:
            what = "the gradient" if memory is None else "the gradient plus memory"
            raise CodecError(
                f"{segments.describe(bad)} holds NaN or infinity in {what}, expected finite values; the memory is "
                "unchanged: skip the step, or look for a diverging loss"
            )

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
            payloads: In rank order; a matrix, as all-gather leaves it, is read in place, a list is copied into one.
            segments: Those of the senders.
            out: Flat group, float32 [d]; written in full.
            scale: Factor, for example 1 / ranks.
            seed: That of the senders.
            step: That of the senders.

        Raises:
            CodecError: A tensor does not fit, or a payload says something impossible.
        """
        self._check_floats("out", out, segments)
        rows = payloads if isinstance(payloads, Tensor) else torch.stack(list(payloads))
        _check_bytes("payloads", rows, self.size_bytes(segments), 2)
        self._decode_sum(rows, segments, out.detach(), scale, Draw(seed, step))

    def _kernels(self, device: torch.device) -> ModuleType:
        if self.implementation == "torch" or (self.implementation == "auto" and device.type != "cpu"):
            return reference
        if device.type != "cpu":
            raise CodecError(
                f"tensors are on {device}, numba kernels take CPU tensors; use 'auto' or 'torch'"
            )
        from wirewise.codec.gradients.kernels import cpu

        return cpu

    def _check_floats(self, name: str, value: Tensor, segments: Segments) -> None:
        if value.dtype != torch.float32 or value.shape != (segments.total,) or not value.is_contiguous():
            raise CodecError(
                f"{name} is {value.dtype} {tuple(value.shape)}, expected contiguous float32 ({segments.total},)"
            )

    def _check_memory(self, memory: Tensor, gradient: Tensor, segments: Segments) -> None:
        if self.memory is None:
            raise CodecError(f"{type(self).__name__} keeps no memory between steps, got one; pass None")
        self._check_floats("memory", memory, segments)
        if memory.device != gradient.device:
            raise CodecError(
                f"memory is on {memory.device}, the gradient on {gradient.device}; expected one device"
            )


def _check_bytes(name: str, value: Tensor, size: int, dim: int) -> None:
    fits = value.dtype == torch.uint8 and value.dim() == dim and value.shape[-1] == size and len(value)
    if not fits or not value.is_contiguous():
        raise CodecError(
            f"{name} is {value.dtype} {tuple(value.shape)}, expected {dim}-D contiguous uint8 with {size} bytes "
            "a payload; all ranks must use the same codec, options and segments"
        )


def check_ratio(ratio: float) -> float:
    """The share of elements to keep, if it can be used."""
    if not 0.0 < ratio <= 1.0:
        raise InputError(f"ratio is {ratio}; expected a share above 0 and at most 1, for example 0.01")
    return float(ratio)


def put_floats(out: UInt8[Tensor, " bytes"], start: int, values: Float[Tensor, " s"]) -> None:
    """Write float32 numbers at a byte, which need not be aligned."""
    out[start : start + 4 * len(values)].copy_(values.view(torch.uint8))


def get_floats(payloads: UInt8[Tensor, "n bytes"], start: int, count: int) -> Float[Tensor, "n s"]:
    """Aligned copy of float32 numbers that start at a byte of each payload."""
    part = payloads[:, start : start + 4 * count]
    return part.clone(memory_format=torch.contiguous_format).view(torch.float32)
