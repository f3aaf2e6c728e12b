"""Encode rows into the bytes sent to one peer, and decode them: argument checks, then the device's kernels.

Stochastic integer quantization of each row with its own zero point and step, after Wan et al., "Adaptive
Message Quantization and Parallelization for Distributed Full-graph GNN Training" (MLSys 2023), section 3.
Both ends use the transmitted pair, so that the decoded row is unbiased. `kernels/reference.py` defines the
arithmetic.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from wirewise.codec.kernels import IMPLEMENTATIONS, reference, resolve_implementation
from wirewise.codec.layout import MessageLayout
from wirewise.errors import CodecError

__all__ = ["IMPLEMENTATIONS", "pack", "unpack", "unpack_add", "unpack_aggregate", "warm"]


def pack(
    x: Float[Tensor, "m d"],
    index: Int[Tensor, " n"] | None,
    layout: MessageLayout,
    out: UInt8[Tensor, " bytes"],
    *,
    key: int,
    rows: Int[Tensor, " n"] | np.ndarray,
    stochastic: bool = True,
    ranges: Float[Tensor, " n"] | None = None,
    implementation: str = "auto",
) -> None:
    """Encode row `index[i]` of `x` as message i, for every i, into the send buffer.

    Args:
        x: Rows, float32 [m, D].
        index: Row of each message, int32 or int64 [n]. Defaults to row i for message i.
        layout: Layout of n messages of width D.
        out: Send buffer, uint8 [layout.size_bytes]; written in full.
        key: Key of the random stream, 32 bits (`rng.stream_key`).
        rows: Global id of each message, int64 [n]; random bits depend on (key, global id, column) only.
        stochastic: Round up with the probability of the fraction; False rounds to nearest.
        ranges: Receives max - min of each message, float32 [n].
        implementation: One of `IMPLEMENTATIONS`; all write the same bytes.

    Raises:
        CodecError: An argument does not fit the layout, or a message holds NaN or infinity (or spans more
            than float32 can express); then the buffer's content is undefined.
    """
    count = len(layout)
    _check_tensor("x", x, torch.float32, 2)
    _check_width("x", x, layout)
    _check_buffer("out", out, layout)
    x = x.detach().contiguous()
    if index is None:
        if len(x) != count:
            raise CodecError(
                f"x has {len(x)} rows and there is no index, expected one row for each of {count} messages"
            )
    else:
        index = _check_index(index, count, len(x), "x", x.device)
    row_ids = _check_rows(rows, count)
    if ranges is not None:
        _check_tensor("ranges", ranges, torch.float32, 1)
        if len(ranges) != count or not ranges.is_contiguous():
            raise CodecError(
                f"ranges has {len(ranges)} entries, expected {count}, contiguous: one for each message"
            )
    if not 0 <= key < 1 << 32:
        raise CodecError(f"key is {key}, expected 32 bits; make it with rng.stream_key")
    if count == 0:
        return
    kernels = _kernels(implementation, x.device)
    bad = kernels.pack(x, index, layout, out, key, row_ids, stochastic, ranges)
    if bad >= 0:
        _raise_bad(x, index, layout, row_ids, bad)


def unpack(
    buffer: UInt8[Tensor, " bytes"],
    layout: MessageLayout,
    out: Float[Tensor, "n d"],
    *,
    scale: float = 1.0,
    implementation: str = "auto",
) -> None:
    """Write `scale` times each decoded message to the rows of `out`, in message order.

    Args:
        buffer: Received bytes, uint8 [layout.size_bytes].
        layout: Layout that the sender used.
        out: Contiguous float32 [n, D], for example the halo rows of one peer.
        scale: Factor of every decoded value.
        implementation: One of `IMPLEMENTATIONS`.

    Raises:
        CodecError: A tensor does not fit the layout.
    """
    _check_buffer("buffer", buffer, layout)
    _check_out(out, layout)
    if len(out) != len(layout):
        raise CodecError(f"out has {len(out)} rows, expected one for each of {len(layout)} messages")
    if len(layout):
        _kernels(implementation, buffer.device).unpack(buffer, layout, out.detach(), scale)


def unpack_add(
    buffer: UInt8[Tensor, " bytes"],
    layout: MessageLayout,
    index: Int[Tensor, " n"],
    out: Float[Tensor, "m d"],
    *,
    scale: float = 1.0,
    implementation: str = "auto",
) -> None:
    """Add `scale` times decoded message i to `out[index[i]]`; for partial gradients returned to their owners.

    Args:
        buffer: Received bytes, uint8 [layout.size_bytes].
        layout: Layout that the sender used.
        index: Row of `out` for each message, int32 or int64 [n].
        out: Contiguous float32 [m, D].
        scale: Factor of every decoded value.
        implementation: One of `IMPLEMENTATIONS`.

    Raises:
        CodecError: A tensor does not fit the layout, or an index lies outside `out`.
    """
    _check_buffer("buffer", buffer, layout)
    _check_out(out, layout)
    index = _check_index(index, len(layout), len(out), "out", out.device)
    if len(layout):
        _kernels(implementation, buffer.device).unpack_add(buffer, layout, index, out.detach(), scale)


def unpack_aggregate(
    buffer: UInt8[Tensor, " bytes"],
    layout: MessageLayout,
    csr_indptr: Int[Tensor, " r1"],
    csr_indices: Int[Tensor, " e"],
    weight: Float[Tensor, " e"],
    out: Float[Tensor, "r d"],
    *,
    implementation: str = "auto",
) -> None:
    """Add to `out[r]` the weighted sum of the messages of row r, without writing the decoded messages.

    Args:
        buffer: Received bytes, uint8 [layout.size_bytes].
        layout: Layout that the sender used.
        csr_indptr: Start of each row's messages, int64 [r + 1].
        csr_indices: Message numbers, int32 or int64 [e].
        weight: Weight of each entry, float32 [e].
        out: Contiguous float32 [r, D].
        implementation: One of `IMPLEMENTATIONS`.

    Raises:
        CodecError: A tensor does not fit the layout, or a message number lies outside it.
    """
    _check_buffer("buffer", buffer, layout)
    _check_out(out, layout)
    entries = len(csr_indices)
    indices = _check_index(csr_indices, entries, len(layout), "the layout", out.device)
    _check_tensor("weight", weight, torch.float32, 1)
    if csr_indptr.dtype != torch.int64 or csr_indptr.shape != (len(out) + 1,):
        raise CodecError(
            f"csr_indptr is {csr_indptr.dtype} {tuple(csr_indptr.shape)}, expected int64 ({len(out) + 1},): "
            "one more than the rows of out"
        )
    if len(weight) != entries or int(csr_indptr[0]) != 0 or int(csr_indptr[-1]) != entries:
        raise CodecError(
            f"csr_indptr spans {int(csr_indptr[0])}..{int(csr_indptr[-1])} and weight has {len(weight)} "
            f"entries, expected 0..{entries} and {entries}, as csr_indices has"
        )
    if bool((csr_indptr.diff() < 0).any()):
        raise CodecError("csr_indptr decreases, expected the ascending row starts of a CSR matrix")
    if entries:
        arguments = (csr_indptr.contiguous(), indices, weight.detach().contiguous(), out.detach())
        _kernels(implementation, buffer.device).unpack_aggregate(buffer, layout, *arguments)


def warm() -> None:
    """Compile the CPU kernels ahead of time; the compiled code is kept on disk for later processes."""
    from wirewise.codec.kernels import cpu

    cpu.warm()


def _kernels(implementation: str, device: torch.device) -> ModuleType:
    """Module of kernels for an implementation's name; compiled ones are imported on first use."""
    if implementation not in IMPLEMENTATIONS:
        raise CodecError(f"implementation is {implementation!r}, expected one of {IMPLEMENTATIONS}")
    name = resolve_implementation(implementation, device)
    if name == "torch":
        return reference
    if name == "numba":
        from wirewise.codec.kernels import cpu

        return cpu
    from wirewise.codec.kernels import triton_gpu

    triton_gpu.check_device(device)
    return triton_gpu


def _check_tensor(name: str, value: Any, dtype: torch.dtype, dim: int) -> None:
    if not isinstance(value, Tensor):
        raise CodecError(f"{name} is a {type(value).__name__}, expected a {dim}-D tensor of {dtype}")
    if value.dtype != dtype or value.dim() != dim:
        raise CodecError(
            f"{name} is {value.dtype} {tuple(value.shape)}, expected a {dim}-D tensor of {dtype}"
        )


def _check_width(name: str, value: Tensor, layout: MessageLayout) -> None:
    if value.shape[1] != layout.width:
        raise CodecError(f"{name} has {value.shape[1]} columns, expected the layout's {layout.width}")


def _check_out(out: Tensor, layout: MessageLayout) -> None:
    _check_tensor("out", out, torch.float32, 2)
    _check_width("out", out, layout)
    if not out.is_contiguous():
        raise CodecError(f"out has strides {out.stride()}, expected contiguous rows: it is written in place")


def _check_buffer(name: str, buffer: Tensor, layout: MessageLayout) -> None:
    _check_tensor(name, buffer, torch.uint8, 1)
    if len(buffer) != layout.size_bytes or not buffer.is_contiguous():
        raise CodecError(
            f"{name} has {len(buffer)} bytes with stride {buffer.stride(0)}, expected {layout.size_bytes} "
            f"contiguous bytes for {layout}; both ends must build the layout from the same table"
        )


def _check_index(index: Any, count: int, limit: int, what: str, device: torch.device) -> Tensor:
    """The index, contiguous, on `device`, after checks of its type, length and range."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64) or index.dim() != 1:
        kind = f"{index.dtype} {tuple(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
        raise CodecError(f"index is {kind}, expected a 1-D tensor of int32 or int64")
    if len(index) != count:
        raise CodecError(f"index has {len(index)} entries, expected one for each of {count} messages")
    if count:
        low, high = torch.stack(index.aminmax()).tolist()
        if low < 0 or high >= limit:
            wrong = int(torch.nonzero((index < 0) | (index >= limit))[0])
            raise CodecError(
                f"index[{wrong}] is {int(index[wrong])}, expected a number in [0, {limit}): "
                f"the rows of {what}"
            )
    return index.to(device).contiguous()


def _check_rows(rows: Any, count: int) -> Tensor:
    """The global ids as a contiguous int64 tensor."""
    if isinstance(rows, np.ndarray):
        # Tables that are read from a file are read-only, which torch warns about.
        rows = torch.from_numpy(np.require(rows, requirements=("C", "W")))
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.shape != (count,):
        kind = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise CodecError(f"rows is {kind}, expected the int64 global ids of {count} messages")
    return rows.contiguous()


def _raise_bad(x: Tensor, index: Tensor | None, layout: MessageLayout, rows: Tensor, message: int) -> None:
    row = x[message if index is None else int(index[message])]
    wrong = torch.nonzero(~row.isfinite())
    name = f"message {message} (global row {int(rows[message])}, {int(layout.bits[message])} bit)"
    if len(wrong):
        column = int(wrong[0])
        raise CodecError(
            f"{name} holds {float(row[column])} in column {column}, expected finite values; "
            "look for a diverging loss, or lower the learning rate"
        )
    raise CodecError(
        f"{name} spans {float(row.min()):g} to {float(row.max()):g}, more than float32 can express; "
        "send it as 32 bit or scale it down"
    )
