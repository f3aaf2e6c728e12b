"""The gradient kernels in plain torch operations: the definition that the fast kernels are held to.

v is gradient + memory, in float32. Sums are taken in float64, where their order is lost in rounding to float32.

Codes of b < 8 bits lie in planes: a segment is cut into blocks of `BLOCK` elements, and byte j of a block of W bytes
holds elements j, j + W, j + 2W, ... of the block from its lowest bits upward.

The draw of element c of segment id is the 32-bit word h = mix32(row_key(key, id) + c * GOLDEN) of `wirewise.rng`; its
upper 24 bits are used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from wirewise import rng
from wirewise.codec.gradients.segments import Segments

__all__ = [
    "BLOCK",
    "add_cast",
    "add_levels",
    "add_signs",
    "add_sparse",
    "add_ternary",
    "draw",
    "halves",
    "largest",
    "peaks",
    "sums",
    "take",
    "write_cast",
    "write_levels",
    "write_momentum",
    "write_signs",
    "write_ternary",
]

BLOCK = 4096
"""Elements that share planes."""


def _slices(segments: Segments) -> Iterator[slice]:
    for start, end in zip(segments.offsets[:-1].tolist(), segments.offsets[1:].tolist(), strict=True):
        yield slice(start, end)


def _values(gradient: Tensor, memory: Tensor | None) -> Tensor:
    return gradient if memory is None else gradient + memory


def _first_bad(good: list[Tensor]) -> int:
    """Number of the first segment that is not good, or -1."""
    wrong = torch.nonzero(~torch.stack(good))
    return int(wrong[0]) if len(wrong) else -1


def sums(gradient: Tensor, memory: Tensor | None, segments: Segments, power: int) -> tuple[Tensor, int]:
    """Sum of |v|^power of each segment, float64 [s], power 1 or 2; and the first segment not finite, or -1."""
    v = _values(gradient, memory).double().abs()
    totals = torch.stack([v[part].pow(power).sum() for part in _slices(segments)])
    return totals, _first_bad(list(totals.isfinite()))


def peaks(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, int]:
    """Largest |v| of each segment, float32 [s]; and the first segment not finite, or -1."""
    v = _values(gradient, memory).abs()
    found = torch.stack([v[part].amax() for part in _slices(segments)])
    return found, _first_bad(list(found.isfinite()))


def halves(gradient: Tensor, memory: Tensor | None, segments: Segments) -> tuple[Tensor, Tensor, int]:
    """Means of the v with and without sign bit, float32 [s] each, 0 of none; and the first not finite, or -1."""
    v = _values(gradient, memory).double()
    lows, highs = [], []
    for part in _slices(segments):
        minus = v[part].signbit()
        lows.append(torch.where(minus, v[part], 0.0).sum() / minus.sum().clamp_min(1))
        highs.append(torch.where(minus, 0.0, v[part]).sum() / (~minus).sum().clamp_min(1))
    low, high = torch.stack(lows), torch.stack(highs)
    return low.float(), high.float(), _first_bad(list(low.isfinite() & high.isfinite()))


def write_cast(
    gradient: Tensor, memory: Tensor | None, segments: Segments, out: Tensor, dtype: torch.dtype
) -> int:
    """Round v to 16 bits, at most the largest finite value; memory = v - sent; first segment not finite, or -1."""
    v = _values(gradient, memory)
    bad = peaks(v, None, segments)[1]
    most = torch.finfo(dtype).max
    sent = v.clamp(-most, most).to(dtype)
    out.copy_(sent.view(torch.uint8))
    if memory is not None:
        memory.copy_(v - sent.float())
    return bad


def write_signs(
    gradient: Tensor, memory: Tensor | None, segments: Segments, low: Tensor, high: Tensor, out: Tensor
) -> None:
    """Bit 0 where v has the sign bit, which decodes to `low` of its segment, else 1, `high`; memory = v - sent."""
    v = _values(gradient, memory)
    minus = v.signbit()
    starts = segments.starts_of(1)
    for s, part in enumerate(_slices(segments)):
        out[starts[s] : starts[s + 1]] = _to_planes((~minus[part]).to(torch.uint8), 1)
        if memory is not None:
            memory[part] = v[part] - torch.where(minus[part], low[s], high[s])


def write_momentum(gradient: Tensor, memory: Tensor, segments: Segments, share: float, out: Tensor) -> None:
    """Add (gradient - memory) * share to the memory; its signs are written as by `write_signs`."""
    memory.add_((gradient - memory) * share)
    one = torch.ones(len(segments), device=memory.device)
    write_signs(memory, None, segments, -one, one, out)


def write_levels(
    gradient: Tensor,
    memory: Tensor | None,
    segments: Segments,
    norms: Tensor,
    levels: int,
    key: int,
    out: Tensor,
) -> None:
    """Signed level floor(|v| * levels / norm + u) as a byte, u in [0, 1) with 24 bits; memory = v - sent."""
    v = _values(gradient, memory)
    inverse = torch.where(norms > 0, float(levels << 24) / norms, 0.0)
    steps = norms / levels
    for s, part in enumerate(_slices(segments)):
        fixed = (v[part].abs() * inverse[s]).to(torch.int64).clamp_max(levels << 24)
        level = (fixed + (_words(key, segments, s) >> 8).to(v.device)) >> 24
        signed = torch.where(v[part].signbit(), -level, level)
        out[part] = signed.to(torch.int8).view(torch.uint8)
        if memory is not None:
            memory[part] = v[part] - signed.float() * steps[s]


def write_ternary(
    gradient: Tensor, memory: Tensor | None, segments: Segments, tops: Tensor, key: int, out: Tensor
) -> None:
    """Codes 1 (+top) and 2 (-top) where |v| / top > u, else 0; u in [0, 1) with 24 bits; memory = v - sent."""
    v = _values(gradient, memory)
    inverse = torch.where(tops > 0, 1.0 / tops, 0.0)
    starts = segments.starts_of(2)
    for s, part in enumerate(_slices(segments)):
        limit = (_words(key, segments, s) >> 8).float().to(v.device) * 2.0**-24
        sent = v[part].abs() * inverse[s] > limit
        minus = v[part].signbit()
        codes = torch.where(sent, torch.where(minus, 2, 1), 0).to(torch.uint8)
        out[starts[s] : starts[s + 1]] = _to_planes(codes, 2)
        if memory is not None:
            memory[part] = v[part] - torch.where(sent, torch.where(minus, -tops[s], tops[s]), 0.0)


def largest(
    gradient: Tensor, memory: Tensor | None, segments: Segments, counts: np.ndarray
) -> tuple[Tensor, Tensor, int]:
    """Indices (int32, ascending) and values of the largest |v| of each segment; sent places of memory become 0."""
    v = _values(gradient, memory)
    bad = peaks(v, None, segments)[1]
    chosen = []
    for part, count in zip(_slices(segments), counts.tolist(), strict=True):
        order = v[part].abs().sort(descending=True, stable=True).indices
        chosen.append(order[:count].sort().values + part.start)
    indices = torch.cat(chosen).to(torch.int32)
    if bad >= 0:
        return indices, v[indices.long()], bad
    return indices, take(gradient, memory, indices), bad


def draw(segments: Segments, counts: np.ndarray, key: int) -> Tensor:
    """Distinct random indices of each segment, int32, in the order of their draws.

    Draws floor(h * size / 2^32) that would favour an index, or that came before, are passed over. Beyond half of
    a segment the indices that are left out are drawn instead, and the others follow in ascending order.
    """
    parts = []
    for s, (size, count) in enumerate(zip(segments.sizes.tolist(), counts.tolist(), strict=True)):
        wanted = count if count <= size // 2 else size - count
        found = _distinct(key, int(segments.ids[s]), size, wanted)
        if count > size // 2:
            found = np.setdiff1d(np.arange(size), found)
        parts.append(found + segments.offsets[s])
    return torch.from_numpy(np.concatenate(parts).astype(np.int32))


def _distinct(key: int, row: int, size: int, wanted: int) -> np.ndarray:
    draws = 2 * wanted + 64
    while True:
        product = _words_of(key, row, draws).astype(np.uint64) * np.uint64(size)
        fair = product[(product & np.uint64(0xFFFFFFFF)) >= (1 << 32) % size] >> np.uint64(32)
        values, first = np.unique(fair, return_index=True)
        if len(values) >= wanted:
            return values[np.argsort(first)][:wanted].astype(np.int64)
        draws *= 2


def take(gradient: Tensor, memory: Tensor | None, indices: Tensor) -> Tensor:
    """V at the indices, float32; memory = v, and 0 at the indices."""
    if memory is None:
        return gradient[indices.long()]
    memory.add_(gradient)
    values = memory[indices.long()]
    memory[indices.long()] = 0.0
    return values


def add_cast(payloads: Tensor, out: Tensor, scale: float, dtype: torch.dtype) -> None:
    """Write the sum of the rows times `scale`."""
    out.zero_()
    for row in payloads.view(dtype):
        out.add_(row.float() * scale)


def add_signs(payloads: Tensor, segments: Segments, low: Tensor, high: Tensor, out: Tensor) -> None:
    """Write the sum of the levels low and high [n, s] that the bits of each row choose."""
    out.zero_()
    starts = segments.starts_of(1)
    for r, row in enumerate(payloads):
        for s, part in enumerate(_slices(segments)):
            codes = _from_planes(row[starts[s] : starts[s + 1]], 1, part.stop - part.start)
            out[part] += torch.where(codes > 0, high[r, s], low[r, s])


def add_levels(payloads: Tensor, segments: Segments, steps: Tensor, out: Tensor) -> None:
    """Write the sum of signed level times step [n, s]."""
    out.zero_()
    for r, row in enumerate(payloads):
        for s, part in enumerate(_slices(segments)):
            out[part] += row[part].view(torch.int8).float() * steps[r, s]


def add_ternary(payloads: Tensor, segments: Segments, tops: Tensor, out: Tensor) -> None:
    """Write the sum of 0, +top or -top, tops [n, s]."""
    out.zero_()
    starts = segments.starts_of(2)
    for r, row in enumerate(payloads):
        for s, part in enumerate(_slices(segments)):
            codes = _from_planes(row[starts[s] : starts[s + 1]], 2, part.stop - part.start)
            out[part] += ((codes & 1).float() - (codes >> 1).float()) * tops[r, s]


def add_sparse(indices: Tensor, values: Tensor, out: Tensor) -> None:
    """Add values at distinct indices."""
    out.index_add_(0, indices.long(), values)


def _words(key: int, segments: Segments, s: int) -> Tensor:
    """32 random bits of each element of a segment, int64."""
    return torch.from_numpy(_words_of(key, int(segments.ids[s]), int(segments.sizes[s])))


def _words_of(key: int, row: int, count: int) -> np.ndarray:
    """The first words of a row, int64 [count]: its two 16-bit halves are columns of `uniform16`."""
    both = rng.uniform16(key, np.array([row]), 2 * count)[0].astype(np.int64)
    return both[:count] | both[count:] << 16


def _to_planes(codes: Tensor, bits: int) -> Tensor:
    """Bytes of the codes (uint8) of a segment."""
    parts = []
    for block in codes.split(BLOCK):
        planes = 8 // bits
        size = -(-len(block) // planes)
        padded = block.new_zeros(planes * size)
        padded[: len(block)] = block
        shifts = (torch.arange(planes, device=codes.device) * bits).to(torch.uint8)
        parts.append((padded.view(planes, size) << shifts[:, None]).sum(dim=0, dtype=torch.uint8))
    return torch.cat(parts)


def _from_planes(packed: Tensor, bits: int, count: int) -> Tensor:
    """Inverse of `_to_planes`."""
    planes = 8 // bits
    shifts = (torch.arange(planes, device=packed.device) * bits).to(torch.uint8)
    parts = [
        ((block[None, :] >> shifts[:, None]) & ((1 << bits) - 1)).flatten()[: count - planes * start]
        for start, block in zip(
            range(0, len(packed), BLOCK // planes), packed.split(BLOCK // planes), strict=True
        )
    ]
    return torch.cat(parts)
