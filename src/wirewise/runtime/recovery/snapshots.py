"""Snapshots of a rank's own state, kept in shared memory of its host, where they survive its process.

Two slots are written alternately, so that the previous step's state is intact while the next is written; the step of
a slot is written last. A replacement process on this host resumes from it. `mirror` also sends a copy to the next
rank, against the loss of the host.

No rank may begin the update of a step before all have written their snapshot of it (`Updates(prepare=...)`, with
`write_snapshot`): then no rank is ever at a step that the snapshot of a dead one lacks.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.files import make_folder
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import Tree, pack, raw_bytes, unpack

__all__ = ["Snapshots", "agree_on_step", "fetch", "mirror", "write_snapshot"]

_HEAD = struct.Struct("<qQQI")
"""Step, bytes of the frame, bytes of tensors, checksum of the frame."""
_NONE = -1
_TAG = 0x5EC1


class Snapshots:
    """Last two states of a rank's own part.

    Args:
        folder: Folder of the job in this host's memory, such as in /dev/shm; created if missing.
        rank: Rank whose states they are.

    Raises:
        InputError: The folder cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._slots = [_Slot(make_folder(folder) / f"rank-{rank}.{number}") for number in range(2)]

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of the stored states, ascending."""
        return tuple(sorted(slot.step for slot in self._slots if slot.step != _NONE))

    def write(self, step: int, tree: Tree) -> None:
        """Store the state of a step, replacing the older of the two.

        Raises:
            InputError: The memory is full, with the newer state intact; or a value is unsupported.
        """
        frame, tensors = pack(tree)
        self._oldest(step).write(step, frame, tensors)

    def packed(self, step: int) -> Tensor:
        """State of a step as bytes, for `take`, uint8 [bytes]."""
        return self._of(step).content().clone()

    def take(self, packed: Tensor) -> None:
        """Store a state from another rank's `packed`."""
        step, frame_size, size, _ = _HEAD.unpack(packed[: _HEAD.size].numpy().tobytes())
        frame, data = packed[_HEAD.size :].split([frame_size, size])
        self._oldest(step).write(step, frame.numpy().tobytes(), [data])

    def read(self, step: int) -> Tree:
        """Read the state of a step.

        Raises:
            InputError: There is no such state, or it is damaged.
        """
        return self._of(step).read()

    def remove(self) -> None:
        """Free the memory."""
        for slot in self._slots:
            slot.remove()
        # The last rank to leave takes the folder with it; until then it is not empty.
        with suppress(OSError):
            self._slots[0].path.parent.rmdir()

    def _oldest(self, step: int) -> _Slot:
        """The slot to write; steps that are computed anew, after going back, count no more."""
        for slot in self._slots:
            if slot.step >= step:
                slot.empty()
        return min(self._slots, key=lambda slot: slot.step)

    def _of(self, step: int) -> _Slot:
        for slot in self._slots:
            if slot.step == step:
                return slot
        raise InputError(
            f"{self._slots[0].path.with_suffix('')} holds the steps {list(self.steps)}; expected step {step}: what "
            "this rank alone had at it is lost, go on from a checkpoint"
        )


def write_snapshot(
    snapshots: Snapshots, step: int, tree: Tree, transport: Transport, others: Snapshots | None = None
) -> None:
    """Write a snapshot and wait until all ranks have written, and optionally mirrored, theirs.

    Args:
        snapshots: Snapshots of this rank.
        step: Step of the state.
        tree: State of this rank alone (`TrainingState.own`).
        transport: Transport between all ranks.
        others: Snapshots of the previous rank, kept by this rank (`mirror`). None if there are no mirrors.

    Raises:
        PeerError: A peer is gone; the update must not begin.
    """
    snapshots.write(step, tree)
    if others is not None:
        mirror(snapshots, others, step, transport)
    transport.barrier(f"the snapshots of step {step}")


def mirror(snapshots: Snapshots, others: Snapshots, step: int, transport: Transport) -> None:
    """Send a copy of a snapshot to the next rank, and store that of the previous rank, against the loss of a host.

    Args:
        snapshots: Snapshots of this rank, with that of `step`.
        others: Snapshots of the previous rank, kept by this rank.
        step: Step of the state.
        transport: Transport between all ranks.

    Raises:
        PeerError: A peer is gone.
    """
    rank, size = transport.rank, transport.world_size
    taken = _passed({(one, (one + 1) % size) for one in range(size)}, snapshots, step, transport)
    if rank != (rank + 1) % size:
        others.take(taken)


def agree_on_step(snapshots: Snapshots, transport: Transport, others: Snapshots | None = None) -> int:
    """Agree on the newest step stored for every rank; states that only a mirror has are copied back.

    Args:
        snapshots: Snapshots of this rank.
        transport: Transport between all ranks.
        others: Snapshots of the previous rank, kept by this rank (`mirror`). None if there are no mirrors.

    Returns:
        The step, the same on all ranks; -1 if no rank has any state yet.

    Raises:
        InputError: Some ranks have states, but no step is common to all.
        PeerError: A peer is gone.
    """
    mirrored = others.steps if others is not None else ()
    padded = torch.full((4,), _NONE, dtype=torch.int64)
    padded[: len(snapshots.steps)] = torch.tensor(snapshots.steps, dtype=torch.int64)
    padded[2 : 2 + len(mirrored)] = torch.tensor(mirrored, dtype=torch.int64)
    tables = [one.tolist() for one in transport.all_gather(padded, "the steps of snapshots")]
    size = transport.world_size
    own = [set(table[:2]) - {_NONE} for table in tables]
    copies = [set(tables[(rank + 1) % size][2:]) - {_NONE} for rank in range(size)]
    step = max(set.intersection(*(one | copy for one, copy in zip(own, copies, strict=True))), default=_NONE)
    if step == _NONE:
        if any(own) or any(copies):
            lacking = [rank for rank in range(size) if not own[rank] | copies[rank]]
            raise InputError(
                f"ranks have snapshots of the steps {[sorted(one) for one in own]}, and ranks {lacking} none, nor has "
                "the rank after them a mirror; what they alone had is lost, go on from a checkpoint"
            )
        return _NONE
    _take_back({rank for rank in range(size) if step not in own[rank]}, snapshots, others, step, transport)
    return step


def fetch(snapshots: Snapshots, others: Snapshots, step: int, transport: Transport) -> None:
    """Copy back the states of a step that only the next rank's mirror has; does nothing if no rank has any.

    Raises:
        InputError: A mirror does not have it either.
        PeerError: A peer is gone.
    """
    have = transport.all_gather(torch.tensor([step in snapshots.steps]), "the step of snapshots")
    if any(have):
        _take_back({rank for rank, one in enumerate(have) if not one}, snapshots, others, step, transport)


def _take_back(
    lost: set[int], snapshots: Snapshots, others: Snapshots | None, step: int, transport: Transport
) -> None:
    size = transport.world_size
    taken = _passed({((rank + 1) % size, rank) for rank in lost}, others, step, transport)
    if transport.rank in lost:
        snapshots.take(taken)


def _passed(ways: set[tuple[int, int]], held: Snapshots | None, step: int, transport: Transport) -> Tensor:
    """Bytes that came to this rank where states of a step are passed from rank to rank; each has one way in and out."""
    to = {b: a for a, b in ways}.get(transport.rank)
    out = dict(ways).get(transport.rank)
    packed = held.packed(step) if out is not None and held is not None else torch.empty(0, dtype=torch.uint8)
    count = torch.zeros(1, dtype=torch.int64)
    sizes = {} if out is None else {out: torch.tensor([packed.numel()])}
    transport.exchange("sizes of snapshots", _TAG, sizes, {} if to is None else {to: count})
    taken = torch.empty(int(count), dtype=torch.uint8)
    contents = {} if out is None else {out: packed}
    transport.exchange("snapshots", _TAG, contents, {} if to is None else {to: taken})
    return taken


class _Slot:
    """One state in a file of shared memory; a file of another process is found as it left it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._memory: mmap.mmap | None = None

    @property
    def step(self) -> int:
        return int(_HEAD.unpack_from(self._map())[0]) if self._size() >= _HEAD.size else _NONE

    def write(self, step: int, frame: bytes, tensors: Sequence[Tensor]) -> None:
        parts = [raw_bytes(tensor) for tensor in tensors]
        size = sum(part.numel() for part in parts)
        self.empty()
        self._grow(_HEAD.size + len(frame) + size)
        memory = self._map()
        memory[_HEAD.size : _HEAD.size + len(frame)] = frame
        into = torch.frombuffer(memory, dtype=torch.uint8)[_HEAD.size + len(frame) :]
        for part in parts:
            into[: part.numel()].copy_(part)
            into = into[part.numel() :]
        _HEAD.pack_into(memory, 0, _NONE, len(frame), size, zlib.crc32(frame))
        # Last: from here on the slot counts.
        struct.pack_into("<q", memory, 0, step)

    def empty(self) -> None:
        if self._size() >= _HEAD.size:
            _HEAD.pack_into(self._map(), 0, _NONE, 0, 0, 0)

    def content(self) -> Tensor:
        """All bytes that count, uint8 [bytes]; a view."""
        _, frame_size, size, _ = _HEAD.unpack_from(self._map())
        return torch.frombuffer(self._map(), dtype=torch.uint8)[: _HEAD.size + frame_size + size]

    def read(self) -> Tree:
        _, frame_size, size, checksum = _HEAD.unpack_from(self._map())
        if _HEAD.size + frame_size + size > self._size():
            raise InputError(
                f"{self.path} is cut off; what this rank alone had is lost, go on from a checkpoint"
            )
        frame, data = self.content()[_HEAD.size :].split([frame_size, size])
        text = frame.numpy().tobytes()
        if zlib.crc32(text) != checksum:
            raise InputError(
                f"{self.path} is damaged; what this rank alone had is lost, go on from a checkpoint"
            )

        def fill(buffers: list[Tensor]) -> None:
            for buffer, part in zip(buffers, data.split([buffer.nbytes for buffer in buffers]), strict=True):
                raw_bytes(buffer).copy_(part)

        return unpack(text, fill)

    def remove(self) -> None:
        self._memory = None
        self.path.unlink(missing_ok=True)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _grow(self, size: int) -> None:
        if self._size() >= size:
            return
        self._memory = None
        try:
            # Reserved at once: a write to memory that is not there would end the process.
            with self.path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise InputError(
                f"cannot keep {size} bytes in {self.path}: {error.strerror}; free memory of the host, or choose "
                "another folder"
            ) from error

    def _map(self) -> mmap.mmap:
        if self._memory is None or len(self._memory) < self._size():
            with self.path.open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), 0)
        return self._memory
