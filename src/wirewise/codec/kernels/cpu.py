"""The quantizer on the CPU: numba kernels, split over threads for large inputs.

Rows are independent, so threads do not change a byte; kernels release the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirewise.codec.kernels.cpu_pack import pack_rows, pack_wide
from wirewise.codec.kernels.cpu_unpack import aggregate_rows, unpack_rows
from wirewise.codec.layout import BITS, Group, MessageLayout

__all__ = ["pack", "split", "unpack", "unpack_add", "unpack_aggregate", "warm"]

_NO_INDEX = np.empty(0, dtype=np.int64)
_NO_RANGES = np.empty(0, dtype=np.float32)
_MIN_BYTES = 1 << 20
"""A thread gets at least this much: below, handing over costs more than it gains."""

_pools: dict[int, ThreadPoolExecutor] = {}

# Threads do not survive a fork, so a child starts without pools.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)


def split(
    kernel: Callable[..., Any], arguments: tuple[Any, ...], count: int, row_size: int, *, serial: bool = False
) -> list[Any]:
    """Call `kernel(*arguments, lo, hi)` on ranges that cover 0..count; returns results in order of the ranges.

    Args:
        kernel: Function that releases the GIL and treats rows independently.
        arguments: Arguments of the kernel before the range.
        count: Number of rows.
        row_size: Bytes moved per row, to decide whether threads pay.
        serial: Use one thread.
    """
    parts = 1 if serial else max(1, min(torch.get_num_threads(), count * row_size // _MIN_BYTES))
    if parts == 1:
        return [kernel(*arguments, 0, count)]
    if parts not in _pools:
        # Another thread may get here too: the first pool stays, and one without jobs has started no threads.
        _pools.setdefault(parts, ThreadPoolExecutor(parts, thread_name_prefix="wirewise-codec"))
    pool = _pools[parts]
    edges = [count * part // parts for part in range(parts + 1)]
    jobs = [pool.submit(kernel, *arguments, edges[part], edges[part + 1]) for part in range(parts)]
    return [job.result() for job in jobs]


def _index(index: Tensor | None) -> np.ndarray:
    return _NO_INDEX if index is None else index.numpy()


def _rows_of(buffer: np.ndarray, group: Group) -> np.ndarray:
    part = buffer[group.offset : group.offset + group.size_bytes]
    return part.reshape(len(group.order), group.row_bytes)


def pack(
    x: Tensor,
    index: Tensor | None,
    layout: MessageLayout,
    out: Tensor,
    key: int,
    rows: Tensor,
    stochastic: bool,
    ranges: Tensor | None,
) -> int:
    """Encode messages into `out`; returns the index of the first message that cannot be encoded, or -1."""
    source, target = x.detach().numpy(), out.numpy()
    words, spans = (source.view(np.uint32), _NO_RANGES if ranges is None else ranges.numpy())
    zeros = np.empty(layout.num_quantized, dtype=np.float32)
    steps = np.empty(layout.num_quantized, dtype=np.uint16)
    bad: list[int] = []
    for group in layout.groups:
        block, chosen, order = _rows_of(target, group), _index(index), group.order
        if group.bits >= 16:
            arguments: tuple[Any, ...] = (words, source.view(np.uint8), chosen, order, block, spans)
            bad += split(pack_wide, arguments, len(order), 4 * layout.width)
            continue
        place = slice(group.first_param, group.first_param + len(order))
        narrow = layout.param_bytes == 4
        arguments = (
            source,
            words,
            chosen,
            order,
            rows.numpy(),
            np.uint32(key),
            group.bits,
            narrow,
            stochastic,
            block,
            zeros[place],
            steps[place],
            spans,
        )
        bad += split(pack_rows, arguments, len(order), 4 * layout.width)
    _write_parameters(layout, target, zeros, steps)
    return min((message for message in bad if message >= 0), default=-1)


def _write_parameters(
    layout: MessageLayout, target: np.ndarray, zeros: np.ndarray, steps: np.ndarray
) -> None:
    if layout.param_bytes == 4:
        zeros = (zeros.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    target[layout.zeros_offset : layout.steps_offset] = zeros.view(np.uint8)
    target[layout.steps_offset : layout.size_bytes] = steps.view(np.uint8)


def _read_parameters(layout: MessageLayout, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Aligned copies of the zero points (float32) and steps (bfloat16 bits as uint16)."""
    zeros = buffer[layout.zeros_offset : layout.steps_offset].copy()
    steps = buffer[layout.steps_offset : layout.size_bytes].copy().view(np.uint16)
    if layout.param_bytes == 6:
        return zeros.view(np.float32), steps
    return (zeros.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32), steps


def unpack(buffer: Tensor, layout: MessageLayout, out: Tensor, scale: float) -> None:
    """Write `scale` times each decoded row."""
    _unpack(buffer, layout, None, out, scale, add=False)


def unpack_add(buffer: Tensor, layout: MessageLayout, index: Tensor, out: Tensor, scale: float) -> None:
    """Add `scale` times decoded row i to `out[index[i]]`."""
    _unpack(buffer, layout, index, out, scale, add=True)


def _unpack(
    buffer: Tensor, layout: MessageLayout, index: Tensor | None, out: Tensor, scale: float, *, add: bool
) -> None:
    source, target = buffer.numpy(), out.detach().numpy()
    zeros, steps = _read_parameters(layout, source)
    for group in layout.groups:
        place = slice(group.first_param, group.first_param + len(group.order))
        arguments = (
            _rows_of(source, group),
            group.order,
            _index(index),
            group.bits,
            zeros[place],
            steps[place],
            np.float32(scale),
            add,
            target,
        )
        # Two messages may go to one row, so additions are not split over threads.
        split(unpack_rows, arguments, len(group.order), 4 * layout.width, serial=add)


def unpack_aggregate(
    buffer: Tensor, layout: MessageLayout, indptr: Tensor, indices: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Add to `out[r]` the weighted sum of the messages of row r of a CSR matrix."""
    source = buffer.numpy()
    zeros, steps = _read_parameters(layout, source)
    tables = (layout.bits, layout.row_offset, layout.param_slot)
    arguments = (
        source,
        *tables,
        zeros,
        steps,
        indptr.numpy(),
        indices.numpy(),
        weight.detach().numpy(),
        out.detach().numpy(),
    )
    per_row = 4 * layout.width * max(1, len(indices) // max(1, len(out)))
    split(aggregate_rows, arguments, len(out), per_row)


def warm() -> None:
    """Compile every kernel for the argument types in use; numba caches the code on disk."""
    layout = MessageLayout(BITS, 4)
    out = torch.empty(layout.size_bytes, dtype=torch.uint8)
    x, rows = torch.zeros(len(layout), 4), torch.arange(len(layout))
    for index in (None, rows, rows.to(torch.int32)):
        pack(x, index, layout, out, 1, rows, True, torch.empty(len(layout)))
    unpack(out, layout, x, 1.0)
    for index in (rows, rows.to(torch.int32)):
        unpack_add(out, layout, index, x, 1.0)
        indptr = torch.arange(len(layout) + 1)
        unpack_aggregate(out, layout, indptr, index, torch.ones(len(layout)), x)
