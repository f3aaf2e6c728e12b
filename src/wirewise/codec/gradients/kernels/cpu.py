"""CPU versions of the gradient kernels, in numba; `reference.py` defines each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirewise.codec.gradients.kernels import (
    cpu_above,
    cpu_blocks,
    cpu_codes,
    cpu_factors,
    cpu_select,
    cpu_values,
    reference,
)
from wirewise.codec.gradients.kernels.pieces import BLOCK, Bounds, SelectedElements
from wirewise.codec.gradients.kernels.reference_blocks import SCALED
from wirewise.codec.gradients.segments import Segments

__all__ = [*reference.__all__, "copy_checked", "parts_finite"]

REFUSES_LATE = True


def _numpy(memory: Tensor | None) -> np.ndarray | None:
    return None if memory is None else memory.numpy()


def _firsts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])


def sums(gradient: Tensor, memory: Tensor | None, segments: Segments, power: int) -> tuple[Tensor, int]:
    found = torch.empty(len(segments), dtype=torch.float64)
    bad = cpu_values.scan(gradient.numpy(), _numpy(memory), segments.offsets, power, found.numpy())
    return found, bad


def peaks(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, int]:
    found, bad = sums(gradient, memory, segments, 0)
    return found.float(), bad


def first_not_finite(gradient: Tensor, memory: Tensor | None, segments: Segments) -> int:
    return sums(gradient, memory, segments, 0)[1]


def all_finite(values: Tensor) -> bool:
    return bool(cpu_values.peak(values.numpy(), None)[1] < cpu_values.EXPONENT)


def halves(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, Tensor, int]:
    low, high = torch.empty(2, len(segments))
    bad = cpu_values.scan_halves(
        gradient.numpy(), _numpy(memory), segments.offsets, low.numpy(), high.numpy()
    )
    return low, high, bad


def copy_checked(source: Tensor, target: Tensor) -> bool:
    """Copy float32 [d], and return whether all elements are finite."""
    bits = (one.numpy().view(np.uint32) for one in (source, target))
    return bool(cpu_values.copy_peak(*bits) < cpu_values.EXPONENT)


def parts_finite(values: Tensor, parts: np.ndarray) -> bool:
    """Whether all elements are finite in parts of float32 [d], given by first element and end, int64 [n, 2]."""
    return bool(cpu_values.peak_of_parts(values.numpy(), parts) < cpu_values.EXPONENT)


def write_cast(
    gradient: Tensor, memory: Tensor | None, segments: Segments, out: Tensor, dtype: torch.dtype
) -> int:
    half, target = dtype == torch.float16, out.numpy().view(np.uint16)
    return cpu_values.cast(gradient.numpy(), _numpy(memory), segments.offsets, half, target)


def write_signs(
    gradient: Tensor, memory: Tensor | None, segments: Segments, low: Tensor, high: Tensor, out: Tensor
) -> None:
    tables = (segments.offsets, segments.starts_of(1), low.numpy(), high.numpy())
    cpu_codes.write_signs(gradient.numpy(), _numpy(memory), *tables, out.numpy())


def write_plain_signs(gradient: Tensor, segments: Segments, out: Tensor) -> int:
    return cpu_codes.write_plain_signs(gradient.numpy(), segments.offsets, segments.starts_of(1), out.numpy())


def write_momentum(gradient: Tensor, memory: Tensor, segments: Segments, share: float, out: Tensor) -> int:
    tables = (segments.offsets, segments.starts_of(1), np.float32(share))
    return cpu_codes.write_momentum(gradient.numpy(), memory.numpy(), *tables, out.numpy())


def write_levels(
    gradient: Tensor,
    memory: Tensor | None,
    segments: Segments,
    norms: Tensor,
    levels: int,
    key: int,
    out: Tensor,
) -> None:
    inverse = torch.where(norms > 0, float(levels << 24) / norms, 0.0).numpy()
    tables = (segments.offsets, segments.ids, inverse, (norms / levels).numpy())
    target = out.numpy().view(np.int8)
    cpu_codes.write_levels(gradient.numpy(), _numpy(memory), *tables, levels, np.uint32(key), target)


def write_ternary(
    gradient: Tensor, memory: Tensor | None, segments: Segments, tops: Tensor, key: int, out: Tensor
) -> None:
    inverse = torch.where(tops > 0, 1.0 / tops, 0.0).numpy()
    tables = (segments.offsets, segments.starts_of(2), segments.ids, tops.numpy(), inverse)
    cpu_codes.write_ternary(gradient.numpy(), _numpy(memory), *tables, np.uint32(key), out.numpy())


def write_blocks(
    gradient: Tensor, memory: Tensor | None, segments: Segments, bits: int, key: int | None, out: Tensor
) -> tuple[Tensor, int]:
    steps = torch.empty(int(segments.blocks_of(SCALED)[-1]))
    tables = (segments.offsets, segments.starts_of(bits), segments.ids)
    drawn = None if key is None else np.uint32(key)
    values, kept = gradient.numpy(), _numpy(memory)
    bad = cpu_blocks.write_blocks(values, kept, tables, bits, drawn, out.numpy(), steps.numpy())
    return steps, bad


def left_factor(values: Tensor, gradient: Tensor | None, right: Tensor, left: Tensor) -> None:
    cpu_factors.left_factor(values.numpy(), _numpy(gradient), right.numpy(), left.numpy())


def right_factor(values: Tensor, left: Tensor, right: Tensor) -> None:
    cpu_factors.right_factor(values.numpy(), left.numpy(), right.numpy())


def add_product(left: Tensor, right: Tensor, share: float, out: Tensor, *, first: bool) -> None:
    cpu_factors.add_product(left.numpy(), right.numpy(), np.float32(share), first, out.numpy())


def orthogonalise(flat: Tensor, tables: np.ndarray) -> None:
    cpu_factors.orthogonalise(flat.numpy(), tables)


def above(
    values: Tensor,
    memory: Sequence[Tensor] | None,
    segments: Segments,
    bounds: Bounds,
    key: int,
    into: SelectedElements,
) -> int:
    kept = None if memory is None else True
    return _above(values, (None, None, np.float32(0.0)), (None, kept), segments, bounds, key, into)


def accumulate_above(
    gradient: Tensor,
    memory: Sequence[Tensor],
    share: float,
    masked: bool,
    segments: Segments,
    bounds: Bounds,
    key: int,
    into: SelectedElements,
) -> int:
    rest, momentum = memory
    moving = (gradient.numpy(), momentum.numpy(), np.float32(share))
    cleared = (momentum.numpy() if masked else None, True)
    return _above(rest, moving, cleared, segments, bounds, key, into)


def _above(
    values: Tensor,
    moving: tuple[Any, ...],
    cleared: tuple[Any, ...],
    segments: Segments,
    bounds: Bounds,
    key: int,
    into: SelectedElements,
) -> int:
    tables = (segments.offsets, segments.ids, tuple(bounds), np.uint32(key))
    targets = (one.numpy() for one in into)
    return cpu_above.above(values.numpy(), *moving, *cleared, *tables, *targets)


def largest(
    gradient: Tensor, memory: Tensor | None, segments: Segments, counts: np.ndarray
) -> tuple[Tensor, Tensor, int]:
    total = int(counts.sum())
    indices, values = torch.empty(total, dtype=torch.int32), torch.empty(total)
    tables = (segments.offsets, _firsts(counts), indices.numpy(), values.numpy())
    bad = cpu_select.largest(gradient.numpy(), _numpy(memory), *tables)
    if bad < 0 and memory is not None:
        accumulate(gradient, memory, segments)
        take(memory, indices, clear=True)
    return indices, values, bad


def draw(segments: Segments, counts: np.ndarray, key: int, device: torch.device) -> Tensor:
    firsts = _firsts(counts)
    indices = torch.empty(int(firsts[-1]), dtype=torch.int32, device=device)
    cpu_select.draw(segments.offsets, firsts, segments.ids, np.uint32(key), indices.numpy())
    return indices


def accumulate(gradient: Tensor, memory: Tensor, segments: Segments) -> int:
    return cpu_select.accumulate(gradient.numpy(), memory.numpy(), segments.offsets)


def take(values: Tensor, indices: Tensor, *, clear: bool) -> Tensor:
    taken = torch.empty(len(indices))
    cpu_select.take(values.numpy(), indices.numpy(), clear, taken.numpy())
    return taken


def add_cast(payloads: Tensor, out: Tensor, scale: float, dtype: torch.dtype) -> None:
    rows = payloads.numpy().view(np.uint16)
    cpu_values.widen_add(rows, dtype == torch.float16, np.float32(scale), BLOCK, out.numpy())


def add_signs(payloads: Tensor, segments: Segments, low: Tensor, high: Tensor, out: Tensor) -> None:
    tables = (segments.offsets, segments.starts_of(1), low.numpy(), high.numpy())
    cpu_codes.add_signs(payloads.numpy(), *tables, out.numpy())


def add_levels(payloads: Tensor, segments: Segments, steps: Tensor, out: Tensor) -> None:
    rows = payloads.numpy().view(np.int8)
    cpu_codes.add_levels(rows, segments.offsets, steps.numpy(), out.numpy())


def add_blocks(payloads: Tensor, segments: Segments, steps: Tensor, bits: int, out: Tensor) -> None:
    tables = (segments.offsets, segments.starts_of(bits), steps.numpy(), bits)
    cpu_blocks.add_blocks(payloads.numpy().view(np.int8), *tables, out.numpy())


def add_ternary(payloads: Tensor, segments: Segments, tops: Tensor, out: Tensor) -> None:
    tables = (segments.offsets, segments.starts_of(2), tops.numpy())
    cpu_codes.add_ternary(payloads.numpy(), *tables, out.numpy())


def add_sparse(indices: Tensor, values: Tensor, out: Tensor) -> None:
    cpu_select.add_sparse(indices.numpy(), values.numpy(), out.numpy())
