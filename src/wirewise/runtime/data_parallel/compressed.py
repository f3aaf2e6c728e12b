"""Sums of compressed gradients: every rank encodes, all get the codes of all, every rank decodes."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.data_parallel.programs import Observer
from wirewise.runtime.transport import Transport

__all__ = ["int8_sum", "top_k_sum"]


def top_k_sum(
    transport: Transport,
    flat: Tensor,
    *,
    share: float = 0.01,
    residual: Tensor | None = None,
    observer: Observer | None = None,
) -> None:
    """Sum over the ranks, in place, of the largest elements of each (Aji and Heafield, EMNLP 2017).

    Args:
        transport: The ranks.
        flat: float32, 1-D, fewer than 2**31 elements.
        share: Elements that travel, in (0, 1]; at least one does.
        residual: Of the shape of `flat`: added before, and then what was left out, for the next step.
        observer: Is told the times of "encode", "all_gather" and "decode".

    Raises:
        InputError: Another type or shape, or a share out of range.
        PeerError: A peer is gone.
    """
    _check(flat, 0 < share <= 1, f"share={share}")
    count = max(int(flat.numel() * share), 1)

    def encode() -> Tensor:
        if residual is not None:
            flat.add_(residual)
        index = flat.abs().topk(count, sorted=False).indices
        values = flat[index]
        if residual is not None:
            residual.copy_(flat)
            residual[index] = 0.0
        return torch.cat([values.view(torch.uint8), index.to(torch.int32).view(torch.uint8)])

    def decode(codes: list[Tensor]) -> None:
        flat.zero_()
        for code in codes:
            values, index = code[: 4 * count].view(torch.float32), code[4 * count :].view(torch.int32)
            flat.index_add_(0, index, values)

    _exchange(transport, flat, encode, decode, observer)


def int8_sum(
    transport: Transport, flat: Tensor, *, block: int = 256, observer: Observer | None = None
) -> None:
    """Sum over the ranks, in place, of 8-bit codes with one scale a block (Dettmers, ICLR 2016, and others).

    An element is off by at most half of the block's largest over 127, for each rank.

    Args:
        transport: The ranks.
        flat: float32, 1-D.
        block: Elements that share a scale.
        observer: Is told the times of "encode", "all_gather" and "decode".

    Raises:
        InputError: Another type or shape, or a block without elements.
        PeerError: A peer is gone.
    """
    _check(flat, block >= 1, f"block={block}")
    count = -(-flat.numel() // block)

    def encode() -> Tensor:
        padded = flat.new_zeros(count * block)
        padded[: flat.numel()] = flat
        rows = padded.view(count, block)
        scale = rows.abs().amax(dim=1) / 127
        codes = (rows / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().to(torch.int8)
        return torch.cat([scale.view(torch.uint8), codes.view(-1)[: flat.numel()].view(torch.uint8)])

    def decode(codes: list[Tensor]) -> None:
        flat.zero_()
        for code in codes:
            scale = code[: 4 * count].view(torch.float32).repeat_interleave(block)[: flat.numel()]
            flat.addcmul_(scale, code[4 * count :].view(torch.int8).to(torch.float32))

    _exchange(transport, flat, encode, decode, observer)


def _check(flat: Tensor, fits: bool, told: str) -> None:
    if flat.dtype != torch.float32 or flat.dim() != 1 or not 0 < flat.numel() < 2**31 or not fits:
        raise InputError(
            f"got a tensor of {flat.dtype} and shape {tuple(flat.shape)} and {told}; expected float32, one "
            "dimension, 1 to 2**31 - 1 elements, a share in (0, 1] or a block of at least 1"
        )


def _exchange(
    transport: Transport,
    flat: Tensor,
    encode: Callable[[], Tensor],
    decode: Callable[[list[Tensor]], None],
    observer: Observer | None,
) -> None:
    times = [time.perf_counter()]
    code = encode()
    _settle(flat, times)
    codes = transport.all_gather(code, "the all-gather of compressed gradients")
    _settle(flat, times)
    decode(codes)
    _settle(flat, times)
    if observer is not None:
        rank, sizes = transport.rank, (flat.nbytes, code.nbytes, flat.nbytes)
        for number, kind in enumerate(("encode", "all_gather", "decode")):
            observer(kind, rank, rank, sizes[number], times[number], times[number + 1])


def _settle(flat: Tensor, times: list[float]) -> None:
    """Note the time at which a device is done."""
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    times.append(time.perf_counter())
