"""Message logs at senders, from which a lost receiver can be recomputed.

A rank appends what it sends as views and writes them while it waits for a message anyway. A segment file holds records
for one receiver: header (generation, step, microbatch, channel, source, target, shape, type, checksums), then the
bytes as sent. When a step is committed, a record states its number of messages, and then the watermark moves, in a
file of its own. Readers trust records below the watermark whose checksums and number are right, and nothing else.

Segments lie in shared memory, which outlives a killed process, and spill to disk beyond `memory_bytes`. Those below a
checkpoint are deleted when it is durable on every rank, never before.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.files import make_folder
from wirewise.runtime.pipeline.messages import ValueSpec
from wirewise.runtime.points import notify_point

__all__ = ["ALL_RANKS", "LoggedMessages", "MessageKey", "SenderLog", "watermark"]

ALL_RANKS = -1
"""Target of results that all ranks agreed on."""

_MAGIC = b"WWM1"
_FIELDS = struct.Struct("<4sIqiiiiQ")
_DIMENSIONS = struct.Struct("<15q")
_SUMS = struct.Struct("<II")
_HEADER_BYTES = _FIELDS.size + _DIMENSIONS.size + _SUMS.size
_END = -1
"""Channel of the record that ends a step; its microbatch is the number of messages."""
_WATERMARK = struct.Struct("<qII")
_FREE_SHARE = 4
"""A log takes at most one part in so many of the free shared memory."""


class MessageKey(NamedTuple):
    """Key that identifies a message of a training."""

    source: int
    """Rank that sends it."""
    target: int
    """Receiving rank, or `ALL_RANKS`."""
    channel: int
    """Index of the value and its direction, the same at both ends."""
    step: int
    """Step that it belongs to, counted from 0."""
    microbatch: int = 0
    """Microbatch in the step."""


@dataclass
class _Segment:
    path: Path
    handle: int
    in_memory: bool
    first_step: int
    last_step: int
    size_bytes: int = 0


@dataclass
class _Edge:
    """Segments for one receiver, and messages of steps that are not committed."""

    closed: list[_Segment] = field(default_factory=list)
    current: _Segment | None = None
    counts: dict[int, int] = field(default_factory=dict)
    numbers: int = 0

    def close_current(self) -> None:
        """Write no more to the newest segment."""
        if self.current is not None:
            os.close(self.current.handle)
            self.closed.append(self.current)
            self.current = None


class SenderLog:
    """Log of the messages sent by one rank; it starts empty, whatever an earlier process of the rank left.

    Args:
        folder: Folder of the job's logs in shared memory.
        rank: Index of the sending rank.
        spill: Folder on disk for logs beyond `memory_bytes`. None if there is none.
        memory_bytes: Maximum bytes in `folder`. Defaults to a quarter of the free space.
        chunk_bytes: Maximum bytes of a segment, unless a single message is larger.
        chunk_steps: Maximum number of steps in a segment.
        pending_bytes: Maximum bytes waiting to be written.

    Raises:
        InputError: A folder is not writable.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        *,
        spill: str | os.PathLike[str] | None = None,
        memory_bytes: int | None = None,
        chunk_bytes: int = 2**26,
        chunk_steps: int = 10,
        pending_bytes: int = 2**28,
    ) -> None:
        self.rank, self.generation = rank, 0
        self.committed = 0
        """Steps below this one are committed."""
        self._chunk_bytes, self._chunk_steps = chunk_bytes, chunk_steps
        self._most_pending_bytes = pending_bytes
        self._folders = [Path(one) / f"rank-{rank}" for one in (folder, spill) if one is not None]
        for one in self._folders:
            shutil.rmtree(one, ignore_errors=True)
            make_folder(one)
        free = shutil.disk_usage(self._folders[0]).free
        self._memory_bytes = free // _FREE_SHARE if memory_bytes is None else memory_bytes
        self._edges: dict[int, _Edge] = {}
        self._pending: deque[tuple[MessageKey, int, Tensor, ValueSpec]] = deque()
        self._pending_bytes = 0
        self._lock = threading.RLock()
        self._mark = os.open(self._folders[0] / "watermark", os.O_RDWR | os.O_CREAT, 0o644)
        self._write_mark()

    @property
    def size_bytes(self) -> int:
        """Total size of all segments, in bytes."""
        return sum(one.size_bytes for one in self._segments())

    @property
    def memory_used_bytes(self) -> int:
        """Total size of the segments in shared memory, in bytes."""
        return sum(one.size_bytes for one in self._segments() if one.in_memory)

    def append(self, key: MessageKey, message: Tensor, description: ValueSpec | None = None) -> None:
        """Append a message; it is written by `flush` and must not change before.

        Args:
            key: Key of the message, of an uncommitted step.
            message: Content of the message, on the CPU, contiguous.
            description: Shape and dtype for the receiver, if they differ from those of `message`.

        Raises:
            InputError: Too much is pending, and there is no room to write it.
        """
        described = description or ValueSpec(message.shape, message.dtype, False)
        with self._lock:
            if self._pending_bytes + message.nbytes > self._most_pending_bytes:
                self.flush()
            self._pending.append((key, self.generation, message, described))
            self._pending_bytes += message.nbytes

    def flush(self, until: Callable[[], bool] = lambda: False) -> None:
        """Write appended messages, oldest first, until `until` returns True.

        Raises:
            InputError: There is no room; the message says what to do.
        """
        while self._pending and not until():
            with self._lock:
                key, generation, message, description = self._pending.popleft()
                self._pending_bytes -= message.nbytes
                edge = self._edges.setdefault(key.target, _Edge())
                edge.counts[key.step] = edge.counts.get(key.step, 0) + 1
                payload = _bytes_of(message)
                self._write(edge, key, _header(key, generation, payload, description), payload)

    def commit(self, steps: int) -> None:
        """Write all pending messages, and mark steps below `steps` as durable.

        Raises:
            InputError: There is no room.
        """
        if steps <= self.committed:
            return
        self.flush()
        for target, edge in self._edges.items():
            for step in sorted(one for one in edge.counts if one < steps):
                key = MessageKey(self.rank, target, _END, step, edge.counts.pop(step))
                self._write(edge, key, _header(key, self.generation, memoryview(b""), None), memoryview(b""))
        notify_point("log", steps)
        self.committed = steps
        self._write_mark()

    def begin(self, step: int, generation: int) -> None:
        """Resume from a step, discarding messages of it and of later steps.

        Args:
            step: Next step; earlier ones are done.
            generation: Number of the process group, which must increase.
        """
        self._pending.clear()
        self._pending_bytes = 0
        for edge in self._edges.values():
            edge.counts.clear()
        self.generation = generation
        # Both marks, or the higher one of a run that came further would count.
        for mark in (max(step - 1, 0), step):
            self.committed = mark
            self._write_mark()

    def collect(self, step: int) -> None:
        """Delete segments with only steps below `step`, whose checkpoint is durable on every rank."""
        for edge in self._edges.values():
            if edge.current is not None and edge.current.last_step < step:
                edge.close_current()
            for segment in edge.closed:
                if segment.last_step < step:
                    segment.path.unlink(missing_ok=True)
            edge.closed = [one for one in edge.closed if one.last_step >= step]

    def files(self, targets: Iterable[int]) -> dict[str, Tensor]:
        """Contents of segments for some receivers and of the watermark, uint8 [bytes], by relative path."""
        paths = [self._folders[0] / "watermark"]
        for target in targets:
            edge = self._edges.get(target, _Edge())
            paths += [one.path for one in (*edge.closed, edge.current) if one is not None]
        return {
            str(path.relative_to(path.parents[0 if path.name == "watermark" else 1])): torch.frombuffer(
                bytearray(path.read_bytes()), dtype=torch.uint8
            )
            for path in paths
            if path.stat().st_size
        }

    def close(self, *, remove: bool = False) -> None:
        """Close the files; with `remove`, delete them, when no rank needs recomputation any more."""
        for edge in self._edges.values():
            edge.close_current()
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1
        for folder in self._folders if remove else ():
            shutil.rmtree(folder, ignore_errors=True)

    def _segments(self) -> Iterator[_Segment]:
        for edge in self._edges.values():
            yield from edge.closed
            if edge.current is not None:
                yield edge.current

    def _write(self, edge: _Edge, key: MessageKey, header: bytes, payload: memoryview) -> None:
        size = len(header) + len(payload)
        segment = self._segment(edge, key, size)
        try:
            _write_whole(segment.handle, header, payload)
        except OSError as cause:
            os.ftruncate(segment.handle, segment.size_bytes)
            if not segment.in_memory or len(self._folders) == 1:
                raise InputError(
                    f"the log of rank {self.rank} cannot be written to {segment.path.parent}: {cause.strerror}; free "
                    "space, give a spill folder with more, or take checkpoints more often"
                ) from cause
            segment = self._open(edge, key, in_memory=False)
            _write_whole(segment.handle, header, payload)
        segment.size_bytes += size
        segment.last_step = max(segment.last_step, key.step)

    def _segment(self, edge: _Edge, key: MessageKey, size: int) -> _Segment:
        """The segment that takes a record of `size` bytes."""
        fits = self.memory_used_bytes + size <= self._memory_bytes
        if not fits and len(self._folders) == 1:
            raise InputError(
                f"the log of rank {self.rank} has {self.memory_used_bytes} bytes in {self._folders[0]} and may have "
                f"{self._memory_bytes}; give a spill folder on disk, or take checkpoints more often"
            )
        current = edge.current
        if (
            current is None
            or current.size_bytes + size > self._chunk_bytes
            or key.step >= current.first_step + self._chunk_steps
            or (current.in_memory and not fits)
        ):
            return self._open(edge, key, in_memory=fits)
        return current

    def _open(self, edge: _Edge, key: MessageKey, *, in_memory: bool) -> _Segment:
        edge.close_current()
        folder = make_folder(self._folders[0 if in_memory else 1] / f"to-{_name(key.target)}")
        path = folder / f"{edge.numbers:06d}.log"
        edge.numbers += 1
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        edge.current = segment = _Segment(path, handle, in_memory, key.step, key.step)
        return segment

    def _write_mark(self) -> None:
        """Move the watermark; the one before stays beside it, should the write be torn."""
        packed = struct.pack("<qI", self.committed, self.generation)
        place = (self.committed % 2) * _WATERMARK.size
        os.pwrite(self._mark, packed + zlib.crc32(packed).to_bytes(4, "little"), place)


class LoggedMessages:
    """Reader of committed messages sent to one rank, from the logs of all other ranks, with verification.

    Args:
        folders: Folders of the job's logs: in shared memory, on disk, fetched from other hosts.
        target: Index of the receiving rank.
    """

    def __init__(self, folders: Iterable[str | os.PathLike[str]], target: int) -> None:
        self.target = target
        self._found: dict[tuple[MessageKey, int], tuple[memoryview, ValueSpec]] = {}
        self._ends: dict[tuple[int, int, int], tuple[int, int]] = {}
        """Generation and number of messages, by source, target and step."""
        self._numbers: dict[tuple[int, int, int, int], int] = {}
        self._marks: dict[int, int] = {}
        for folder in map(Path, folders):
            for own in sorted(folder.glob("rank-*")):
                rank = int(own.name.removeprefix("rank-"))
                self._marks[rank] = max(watermark(own), self._marks.get(rank, 0))
                for one in (target, ALL_RANKS):
                    for path in sorted((own / f"to-{_name(one)}").glob("*.log")):
                        self._read(path)

    def span(self, source: int, target: int | None = None) -> tuple[int, int]:
        """Steps [first, end) for which all messages of a source are logged, up to its last committed step.

        Args:
            source: Index of the sending rank.
            target: This rank, or `ALL_RANKS`. Defaults to this rank.
        """
        end = first = self._marks.get(source, 0)
        while self._whole(source, self.target if target is None else target, first - 1):
            first -= 1
        return first, end

    def take(self, key: MessageKey) -> tuple[Tensor, ValueSpec]:
        """Read a message and its description.

        Raises:
            InputError: The message is missing in the logs, or damaged.
        """
        if not self.has(key):
            first, last = self.span(key.source, key.target)
            raise InputError(
                f"the log of rank {key.source} for {_name(key.target)} has no whole message {key.channel} of "
                f"microbatch {key.microbatch} in step {key.step}; it has steps {first} to {last - 1}: go back to a "
                "checkpoint that all ranks have"
            )
        generation, _ = self._ends[key.source, key.target, key.step]
        payload, description = self._found[key, generation]
        raw = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0)
        return raw.view(description.dtype).reshape(description.shape), description

    def read_agreed(self, channel: int, step: int) -> Tensor:
        """Read the result that all ranks agreed on in a step, from any rank's log.

        Raises:
            InputError: No log has it.
        """
        keys = [MessageKey(source, ALL_RANKS, channel, step) for source in sorted(self._marks)] or [
            MessageKey(0, ALL_RANKS, channel, step)
        ]
        return self.take(next(filter(self.has, keys), keys[0]))[0]

    def has(self, key: MessageKey) -> bool:
        """Whether a message is logged, intact and committed."""
        generation, _ = self._ends.get((key.source, key.target, key.step), (-1, 0))
        return (key, generation) in self._found and key.step < self._marks.get(key.source, 0)

    def _whole(self, source: int, target: int, step: int) -> bool:
        end = self._ends.get((source, target, step))
        return end is not None and self._numbers.get((source, target, step, end[0]), 0) == end[1]

    def _read(self, path: Path) -> None:
        for key, generation, payload, description in _records(path):
            place = (key.source, key.target, key.step)
            if key.channel == _END:
                self._ends[place] = max(self._ends.get(place, (-1, 0)), (generation, key.microbatch))
            elif (key, generation) not in self._found:
                assert description is not None
                self._found[key, generation] = payload, description
                self._numbers[*place, generation] = self._numbers.get((*place, generation), 0) + 1


def watermark(folder: Path) -> int:
    """Number of steps committed by the rank of a log; 0 if there is no intact watermark."""
    try:
        raw = (folder / "watermark").read_bytes()
    except OSError:
        return 0
    best = 0
    for place in range(0, len(raw) - _WATERMARK.size + 1, _WATERMARK.size):
        step, _, checksum = _WATERMARK.unpack_from(raw, place)
        if zlib.crc32(raw[place : place + _WATERMARK.size - 4]) == checksum:
            best = max(best, step)
    return best


def _records(path: Path) -> Iterator[tuple[MessageKey, int, memoryview, ValueSpec | None]]:
    """Whole records of a segment; what follows a broken header cannot be told apart and is left out."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
    place = 0
    while place + _HEADER_BYTES <= len(view):
        head = view[place : place + _HEADER_BYTES]
        magic, generation, step, microbatch, channel, source, target, length = _FIELDS.unpack_from(head)
        payload_sum, header_sum = _SUMS.unpack_from(head, _HEADER_BYTES - _SUMS.size)
        place += _HEADER_BYTES
        if magic != _MAGIC or zlib.crc32(head[:-4]) != header_sum or place + length > len(view):
            return
        payload = view[place : place + length]
        place += length
        if zlib.crc32(payload) != payload_sum:
            continue
        numbers = _DIMENSIONS.unpack_from(head, _FIELDS.size)
        key = MessageKey(source, target, channel, step, microbatch)
        description = None if channel == _END else ValueSpec.unpack(torch.tensor(numbers))
        yield key, generation, payload, description


def _header(key: MessageKey, generation: int, payload: memoryview, description: ValueSpec | None) -> bytes:
    numbers = [0] * 15 if description is None else description.pack(f"messages to rank {key.target}").tolist()
    head = (
        _FIELDS.pack(
            _MAGIC, generation, key.step, key.microbatch, key.channel, key.source, key.target, len(payload)
        )
        + _DIMENSIONS.pack(*numbers)
        + zlib.crc32(payload).to_bytes(4, "little")
    )
    return head + zlib.crc32(head).to_bytes(4, "little")


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor, not copied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _write_whole(handle: int, header: bytes, payload: memoryview) -> None:
    left = memoryview(header)
    while left or payload:
        done = os.writev(handle, [left, payload])
        left, payload = left[done:], payload[max(done - len(left), 0) :]


def _name(target: int) -> str:
    return "all" if target == ALL_RANKS else f"rank-{target}"
