"""Gradient matrices as products of two thin factors, which an all-reduce can sum."""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, GradientCodec, Memory, get_floats, put_floats, rows_of
from wirewise.codec.gradients.kernels.pieces import words_of
from wirewise.codec.gradients.segments import Segments
from wirewise.errors import InputError

__all__ = ["PowerSGD"]

_SMALL = 2.0**-64
_LARGEST = torch.finfo(torch.float32).max


class _Matrix(NamedTuple):
    """A tensor as a matrix [m, n], and its factors [rank, m] and [rank, n], in floats from the start of theirs."""

    tensor: int
    start: int
    size: int
    m: int
    n: int
    rank: int
    left: int
    right: int

    def of(self, flat: Tensor) -> Tensor:
        """View of its elements in a flat group."""
        return flat[self.start : self.start + self.size]

    def left_of(self, factors: Tensor) -> Tensor:
        """View of its first factor, [rank, m]."""
        return factors[self.left : self.left + self.rank * self.m].view(self.rank, self.m)

    def right_of(self, factors: Tensor) -> Tensor:
        """View of its second factor, [rank, n]."""
        return factors[self.right : self.right + self.rank * self.n].view(self.rank, self.n)


class _Layout(NamedTuple):
    """Layout of a group's message: first factors, then tensors that are no matrices, then second factors; in floats."""

    matrices: tuple[_Matrix, ...]
    vectors: tuple[slice, ...]
    left: int
    plain: int
    right: int

    def copy_vectors(self, flat: Tensor, sent: Tensor) -> None:
        """Copy what is sent as it is from a flat group behind the first factors."""
        at = self.left
        for part in self.vectors:
            size = part.stop - part.start
            sent[at : at + size] = flat[part]
            at += size

    @property
    def left_tables(self) -> np.ndarray:
        """First element, rows and columns of the first factors, int64 [matrices, 3]."""
        return np.array([(one.left, one.rank, one.m) for one in self.matrices], np.int64).reshape(-1, 3)

    @property
    def right_tables(self) -> np.ndarray:
        """First element, rows and columns of the second factors, int64 [matrices, 3]."""
        return np.array([(one.right, one.rank, one.n) for one in self.matrices], np.int64).reshape(-1, 3)


class PowerSGD(GradientCodec):
    """P Q^T of each matrix M, with P = orthonormal(sum M Q) and Q = sum M^T P, warm-started with the last step's Q.

    Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (NeurIPS 2019),
    algorithms 1 and 2. Two rounds; both sums are an all-reduce. A tensor of two dimensions or more is a matrix with a
    row for each element of the first; tensors of one dimension, and those that factors would not make smaller, are
    sent uncompressed. Where `Segments.shapes` is not known, a tensor is a matrix that is nearly square, padded with
    zeros. Blocks of `Segments` are ignored. The second memory keeps Q in its first elements for each tensor; without
    it, Q is sampled anew in each step, the same on all ranks. Implementations and devices agree to rounding.

    Args:
        rank: Columns of the factors, at least 1; capped at the smaller side of a matrix.
        implementation: One of `IMPLEMENTATIONS`.
    """

    memories = ("residual", "factor")
    wire_dtype = torch.float32
    rounds = 2
    looks_first = True

    def __init__(self, *, rank: int = 4, implementation: str = "auto") -> None:
        super().__init__(implementation=implementation)
        if rank < 1:
            raise InputError(f"rank is {rank}; expected at least 1, for example 4")
        self.rank = int(rank)
        self._layouts: WeakKeyDictionary[Segments, _Layout] = WeakKeyDictionary()

    def size_bytes(self, segments: Segments) -> int:
        """4 rank (m + n) bytes for each matrix, 4 bytes per element for the other tensors."""
        layout = self._layout(segments)
        return 4 * (layout.left + layout.plain + layout.right)

    def parts(self, segments: Segments) -> tuple[slice, ...]:
        """First factors and uncompressed tensors, then second factors."""
        layout, size = self._layout(segments), self.size_bytes(segments)
        border = 4 * (layout.left + layout.plain)
        return slice(0, border), slice(border, size)

    def _encode(
        self, gradient: Tensor, memory: Memory | None, segments: Segments, out: Tensor, draw: Draw
    ) -> int:
        kernels, layout = self._kernels(gradient.device), self._layout(segments)
        rows = () if memory is None else rows_of(memory)
        values = rows[0] if rows else gradient
        starts = [_start(one, rows[1:], draw, values.device) for one in layout.matrices]
        sent = values.new_empty(layout.left + layout.plain)
        for one, start in zip(layout.matrices, starts, strict=True):
            added = one.of(gradient) if rows else None
            kernels.left_factor(one.of(values), added, start, one.left_of(sent))
        for part in layout.vectors if rows else ():
            values[part].add_(gradient[part])
        layout.copy_vectors(values, sent)
        # What is not finite makes all products with it so.
        if not kernels.all_finite(sent):
            bad = kernels.first_not_finite(gradient, None, segments)
            if bad < 0 and rows:
                bad = kernels.first_not_finite(values.clamp_(-_LARGEST, _LARGEST), None, segments)
            if bad >= 0:
                return bad
            for one, start in zip(layout.matrices, starts, strict=True):
                kernels.left_factor(one.of(values) * _SMALL, None, start, one.left_of(sent))
                _enlarge(one.left_of(sent))
            layout.copy_vectors(values, sent)
        put_floats(out, 0, sent)
        # Not numbers until `advance` has been called: a payload that is decoded too early shows.
        out[self.parts(segments)[1]] = 0xFF
        for part in layout.vectors if rows else ():
            values[part] = 0.0
        return -1

    def _advance(
        self, number: int, payload: Tensor, gradient: Tensor, memory: Memory | None, segments: Segments
    ) -> None:
        layout, rows = self._layout(segments), () if memory is None else rows_of(memory)
        if number == 0:
            self._project(layout, payload, rows[0] if rows else gradient, feedback=bool(rows))
        elif len(rows) > 1:
            factors = self._rights(layout, payload[None])[0]
            self._kernels(payload.device).orthogonalise(factors, layout.right_tables)
            for one in layout.matrices:
                rows[1][one.start : one.start + one.rank * one.n] = one.right_of(factors).flatten()

    def _project(self, layout: _Layout, payload: Tensor, values: Tensor, *, feedback: bool) -> None:
        """Write the second factors of the values, and with feedback take away from these what they say."""
        kernels = self._kernels(payload.device)
        lefts = self._lefts(layout, payload[None])[0]
        kernels.orthogonalise(lefts, layout.left_tables)
        put_floats(payload, 0, lefts)
        rights = values.new_empty(layout.right)
        for one in layout.matrices:
            part, left, right = one.of(values), one.left_of(lefts), one.right_of(rights)
            kernels.right_factor(part, left, right)
            if not kernels.all_finite(right.view(-1)):
                kernels.right_factor(part * _SMALL, left, right)
                _enlarge(right)
            if feedback:
                kernels.add_product(left, right, -1.0, part, first=False)
        put_floats(payload, 4 * (layout.left + layout.plain), rights)

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        layout = self._layout(segments)
        kernels = self._kernels(out.device)
        pairs = zip(self._lefts(layout, payloads), self._rights(layout, payloads), strict=True)
        for row, (lefts, rights) in enumerate(pairs):
            for one in layout.matrices:
                left, right = one.left_of(lefts), one.right_of(rights)
                kernels.add_product(left, right, scale, one.of(out), first=row == 0)
        at = 4 * layout.left
        for part in layout.vectors:
            values = get_floats(payloads, at, part.stop - part.start) * scale
            out[part] = values[0]
            for other in values[1:]:
                out[part] += other
            at += 4 * (part.stop - part.start)

    def _lefts(self, layout: _Layout, payloads: Tensor) -> Tensor:
        """Copies of the first factors of each payload."""
        return get_floats(payloads, 0, layout.left)

    def _rights(self, layout: _Layout, payloads: Tensor) -> Tensor:
        """Copies of the second factors."""
        return get_floats(payloads, 4 * (layout.left + layout.plain), layout.right)

    def _layout(self, segments: Segments) -> _Layout:
        if segments not in self._layouts:
            self._layouts[segments] = _layout_of(segments, self.rank)
        return self._layouts[segments]


def _layout_of(segments: Segments, maximum: int) -> _Layout:
    matrices: list[_Matrix] = []
    vectors: list[slice] = []
    left = right = 0
    for place, (start, end) in enumerate(zip(segments.tensors[:-1], segments.tensors[1:], strict=True)):
        first, size = int(start), int(end - start)
        m, n = _sides(size, None if segments.shapes is None else segments.shapes[place])
        rank = min(maximum, m, n)
        if rank * (m + n) >= size:
            vectors.append(slice(first, first + size))
            continue
        tensor = int(segments.tensor_ids[place])
        matrices.append(_Matrix(tensor, first, size, m, n, rank, left, right))
        left, right = left + rank * m, right + rank * n
    plain = sum(part.stop - part.start for part in vectors)
    return _Layout(tuple(matrices), tuple(vectors), left, plain, right)


def _sides(size: int, shape: tuple[int, ...] | None) -> tuple[int, int]:
    if shape is None:
        m = isqrt(size - 1) + 1
        return m, -(-size // m)
    # A vector is a matrix of one row, which factors never make smaller.
    return (shape[0], size // shape[0]) if len(shape) > 1 else (1, size)


def _start(one: _Matrix, kept: tuple[Tensor, ...], draw: Draw, device: torch.device) -> Tensor:
    """Where the iteration begins, [rank, n]: rows of the step before, and random ones for those that are 0."""
    rows = None
    if kept:
        rows = kept[0][one.start : one.start + one.rank * one.n].view(one.rank, one.n)
    if rows is not None and bool(rows.any(dim=1).all()):
        return rows
    words = words_of(draw.shared_key, one.tensor, one.rank * one.n, device)
    drawn = (words.float() * 2.0**-31 - 1.0).view(one.rank, one.n)
    return drawn if rows is None else torch.where(rows.any(dim=1, keepdim=True), rows, drawn)


def _enlarge(factor: Tensor) -> None:
    """Undo the `_SMALL` that a factor's matrix was taken times, up to float32's largest."""
    factor.clamp_(-_LARGEST * _SMALL, _LARGEST * _SMALL).div_(_SMALL)
