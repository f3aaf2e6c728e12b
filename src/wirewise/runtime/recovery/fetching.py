"""Logs of other hosts without a shared folder: messages for ranks that are behind are fetched from their senders."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.files import make_folder
from wirewise.runtime.recovery.logs import ALL_RANKS, SenderLog
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import pack, raw_bytes, unpack

__all__ = ["fetch_logs"]

_TAG = 2**30 + 2**28
_NAME = re.compile(r"watermark|to-(all|rank-\d+)/\d+\.log")


def fetch_logs(log: SenderLog, folder: Path, transport: Transport, behind: Collection[int]) -> None:
    """Send ranks that are behind the logs of all others, to a private folder each; a collective call.

    Logs fetched for an earlier failure are replaced. Checksums are verified when messages are read.

    Args:
        log: Log of this rank, flushed.
        folder: Output folder, which becomes a folder of logs.
        transport: Transport between all ranks.
        behind: Ranks that receive the logs.

    Raises:
        InputError: A file name is not a log's, or the folder is not writable.
        PeerError: A peer is gone.
    """
    rank = transport.rank
    frames: dict[int, Tensor] = {}
    contents: dict[int, Tensor] = {}
    for peer in behind:
        if peer != rank:
            frame, tensors = pack(log.files([peer, ALL_RANKS]))
            frames[peer] = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
            contents[peer] = torch.cat([raw_bytes(one) for one in tensors])
    senders = [peer for peer in range(transport.world_size) if peer != rank] if rank in behind else []
    sizes = {peer: torch.zeros(2, dtype=torch.int64) for peer in senders}
    told = {peer: torch.tensor([len(frames[peer]), len(contents[peer])]) for peer in frames}
    transport.exchange("sizes of logs", _TAG, told, sizes)
    came = {peer: torch.empty(int(size[0]), dtype=torch.uint8) for peer, size in sizes.items()}
    transport.exchange("names of logs", _TAG + 1, frames, came)
    data = {peer: torch.empty(int(size[1]), dtype=torch.uint8) for peer, size in sizes.items()}
    transport.exchange("logs", _TAG + 2, contents, data)
    for peer in senders:
        _write(folder / f"rank-{peer}", came[peer].numpy().tobytes(), data[peer])


def _write(folder: Path, frame: bytes, data: Tensor) -> None:
    def fill(buffers: list[Tensor]) -> None:
        for buffer, part in zip(buffers, data.split([one.nbytes for one in buffers]), strict=True):
            buffer.copy_(part)

    files = unpack(frame, fill)
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        if not _NAME.fullmatch(name):
            raise InputError(f"got a log named {name!r} from another rank; expected the names of segments")
        make_folder((folder / name).parent)
        (folder / name).write_bytes(content.numpy().tobytes())
