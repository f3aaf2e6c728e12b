"""Trace folders, with a JSON-lines file for each rank.

The first line of `rank-R.jsonl` is the header. Each other line is an op, {"probe": ...}, {"clock": [s, ns]},
{"group": {name: ranks}}, or ops written short: {"form": ...} and {"times": ...} (`trace.packed`).
Lines are appended and never changed, so a file of a rank that died is readable up to its last whole line.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import TraceError
from wirewise.files import exclusive_folder
from wirewise.trace.messages import messages_in_one_step
from wirewise.trace.packed import Row, Unpacker, pack_form, pack_times
from wirewise.trace.records import COLLECTIVES, FORMAT, KINDS, Header, Op, Probe, RankTrace, Trace

__all__ = [
    "MOST_RANKS",
    "RankWriter",
    "assemble",
    "checked",
    "checked_header",
    "ignore_progress",
    "missing_ranks",
    "rank_file",
    "rank_files",
    "read",
    "read_files",
    "read_rank",
    "write_trace",
]

_FILE = re.compile(r"rank-(\d+)\.jsonl")
_FAR_APART_S = 3600.0
MOST_RANKS = 1 << 20
"""Maximum number of ranks of a run; groups are lists of them."""
_MOST_S, _MOST_STEPS, _MOST_BYTES = 1e11, 1 << 31, 1 << 60
"""Most seconds, steps and bytes of any clock, job or payload; numbers beyond come from damaged files."""
_MOST_NAMED = 8
"""Ranks in a message."""


class _Extra(msgspec.Struct):
    """A line that is no op."""

    probe: Probe | None = None
    clock: tuple[float, int] | None = None
    group: dict[str, list[int]] = {}
    form: Op | None = None
    times: tuple[int, list[list[int]]] | None = None
    environment: dict[str, str] = {}


_ENCODER = msgspec.json.Encoder()
_OP = msgspec.json.Decoder(Op)
_EXTRA = msgspec.json.Decoder(_Extra)
_EXTRA_STARTS = tuple(f'{{"{name}"'.encode() for name in _Extra.__struct_fields__)


def rank_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """Path of a rank's file in a run folder."""
    return Path(folder) / f"rank-{rank}.jsonl"


class RankWriter:
    """Writer of a rank's records to its file; a context manager.

    Args:
        path: Output file (`rank_file`). An older one is replaced.
        header: First line of the file.

    Raises:
        TraceError: The file is not writable. The same holds for `flush` and `close`.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = Path(path)
        try:
            self._file = self.path.open("ab")
            self._take()
        except OSError as cause:
            raise self._refused(cause) from cause
        self._lines: list[bytes] = [_ENCODER.encode(header)]
        try:
            self.flush()
        except TraceError:
            # A file without a header is of no use to a reader.
            self._drop()
            raise

    def write(self, ops: Iterable[Op]) -> None:
        """Add ops; they are in the file after the next `flush`."""
        self._lines += [_ENCODER.encode(op) for op in ops]

    def probe(self, probe: Probe) -> None:
        """Add a round trip made after the header was written."""
        self._lines.append(_ENCODER.encode({"probe": probe}))

    def clock(self, perf_counter_s: float, time_ns: int) -> None:
        """Add a reading of both clocks."""
        self._lines.append(_ENCODER.encode({"clock": (perf_counter_s, time_ns)}))

    def group(self, name: str, ranks: list[int]) -> None:
        """Add a process group created after the header was written."""
        self._lines.append(_ENCODER.encode({"group": {name: ranks}}))

    def environment(self, known: dict[str, str]) -> None:
        """Add to the environment of the header what became known after it was written."""
        self._lines.append(_ENCODER.encode({"environment": known}))

    def form(self, op: Op) -> None:
        """Add the common part of many ops; forms are numbered from 0 in this order (`packed.pack_form`)."""
        self._lines.append(pack_form(op))

    def times(self, step: int, rows: Sequence[Row]) -> None:
        """Add ops of a step by their forms and times."""
        self._lines.append(pack_times(step, rows))

    def flush(self) -> None:
        """Flush all lines to the operating system; call it at the end of each step."""
        text = b"".join(line + b"\n" for line in self._lines)
        self._lines = []
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as cause:
            raise self._refused(cause) from cause

    def close(self) -> None:
        """Flush and close."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                try:
                    # Tries once more to write what the disk did not take.
                    self._file.close()
                except OSError as cause:
                    raise self._refused(cause) from cause

    def __enter__(self) -> RankWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> None:
        """Empty the file, which is this writer's until it is closed."""
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            self._file.close()
            raise TraceError(
                f"{self.path} is being written by a rank of another job; expected one job in a folder: give each a "
                "folder of its own, or start them as one job (torchrun --nnodes, --node-rank)"
            ) from cause
        except OSError:  # a file system without locks
            pass
        self._file.truncate(0)

    def _drop(self) -> None:
        with suppress(OSError):
            # Tries once more to write what the disk did not take.
            self._file.close()
        if self.path.is_file():
            with suppress(OSError):
                self.path.unlink()

    def _refused(self, cause: OSError) -> TraceError:
        return TraceError(
            f"cannot write the trace {self.path}: {cause.strerror or cause}; free space or choose a folder that "
            "exists and can be written"
        )


def write_trace(trace: Trace, folder: str | os.PathLike[str]) -> None:
    """Write the files of all ranks into `folder`, which is created if missing."""
    with exclusive_folder(folder, error=TraceError):
        for rank in trace.ranks:
            with RankWriter(rank_file(folder, rank.header.rank), rank.header) as writer:
                writer.write(rank.ops)


def rank_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Rank files in a folder, sorted by name."""
    return sorted(file for file in Path(folder).iterdir() if _FILE.fullmatch(file.name))


def ignore_progress(text: str) -> None:
    """Ignore progress messages."""


def read(folder: str | os.PathLike[str], log: Callable[[str], None] = ignore_progress) -> Trace:
    """Read the traces of all ranks of a run.

    Args:
        folder: Folder of the recording.
        log: Called with progress messages.

    Raises:
        TraceError: The folder or a trace is missing, a rank is missing, files are of different runs or another format
            version, a line before the last one is unreadable, or there is no common step.
    """
    path = Path(folder)
    if not path.is_dir():
        raise TraceError(f"no folder {path}; give the folder into which the ranks recorded")
    files = rank_files(path)
    if not files:
        raise TraceError(f"no trace in {path}: expected files rank-0.jsonl, rank-1.jsonl and so on")
    return read_files(files, str(path), log)


def read_files(
    files: Iterable[str | os.PathLike[str]], source: str, log: Callable[[str], None] = ignore_progress
) -> Trace:
    """Read the traces of all ranks of a run, from any places.

    Args:
        files: One file per rank, named as by `rank_file`.
        source: Common name of the files in messages, such as their folder.
        log: Called with progress messages.

    Raises:
        TraceError: Raised by `read`.
    """
    ranks, paths = [], list(files)
    for number, file in enumerate(paths, 1):
        log(f"reading file {number} of {len(paths)}")
        rank = read_rank(file)
        named = rank_file("", rank.header.rank).name
        if Path(file).name != named:
            raise TraceError(
                f"{os.fspath(file)} says that it is of rank {rank.header.rank}; it was renamed or copied: record "
                f"again or name it {named}"
            )
        ranks.append(rank)
    trace = messages_in_one_step(assemble(ranks, source))
    if not trace.steps():
        raise TraceError(
            f"no steps in {source} that all ranks have: the run ended before the first step was over, or nothing "
            "marks the steps; record longer, or call `tracer.step()` once a step"
        )
    return trace


def missing_ranks(headers: Sequence[Header]) -> str:
    """Description of the ranks of a run that are missing; empty if there are none."""
    size, found = max(header.world_size for header in headers), {header.rank for header in headers}
    count = size - len(found & set(range(min(size, 1 + max(found)))))
    if count > _MOST_NAMED:
        return f"{count} of {size} ranks are missing"
    names = ", ".join(str(rank) for rank in range(size) if rank not in found)
    ranks = f"rank {names} is" if count == 1 else f"ranks {names} are"
    return f"{ranks} missing, of {size}" if count else ""


def assemble(ranks: list[RankTrace], source: str, *, partial: str = "") -> Trace:
    """Assemble the ranks of one run in order, with notes on anomalies.

    Args:
        ranks: Traces of ranks in any order.
        source: Name in messages, such as their folder.
        partial: Reason why ranks may be missing (`Trace.partial`); empty if none may.

    Raises:
        TraceError: A rank is missing or duplicate, or the ranks are of different runs.
    """
    ordered = sorted(ranks, key=lambda rank: rank.header.rank)
    _check_one_run([rank.header for rank in ordered], source, partial)
    notes = [
        f"the trace of rank {rank.header.rank} was cut off; what it holds of the last step may be missing"
        for rank in ordered
        if not rank.complete
    ]
    return Trace(ranks=ordered, notes=notes + _clock_notes(ordered), partial=partial)


def read_rank(path: str | os.PathLike[str]) -> RankTrace:
    """Read the trace of one rank; a truncated last line is ignored.

    Raises:
        TraceError: The file is unreadable, of another format, or has a malformed line before its last.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as cause:
        raise TraceError(f"cannot read the trace {path}: {cause.strerror}; check the path") from cause
    first, _, rest = text.partition(b"\n")
    header = _header(first, path)
    ops: list[Op] = []
    unpacker = Unpacker()
    # Text after the last line end was not written to its end, even where it happens to be whole.
    for number, line in enumerate(rest.split(b"\n")[:-1], start=2):
        try:
            _take(line, header, ops, unpacker)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError) as cause:
            raise TraceError(f"{path}, line {number}: {cause}; the file is damaged: record again") from cause
    return RankTrace(header, ops, complete=text.endswith(b"\n"))


def _take(line: bytes, header: Header, ops: list[Op], unpacker: Unpacker) -> None:
    if line.startswith(_EXTRA_STARTS):
        extra = _EXTRA.decode(line)
        header.groups.update(extra.group)
        header.environment.update(extra.environment)
        if extra.probe:
            header.probes.append(extra.probe)
        if extra.clock:
            header.clock_pairs.append(extra.clock)
        if extra.form:
            unpacker.form(checked(extra.form))
        if extra.times:
            ops += map(checked, unpacker.times(*extra.times))
        return
    ops.append(checked(_OP.decode(line)))


def checked(op: Op) -> Op:
    """Return the op, if its words are known and its numbers valid.

    Raises:
        msgspec.ValidationError: A field is invalid; the message names it.
    """
    if op.kind not in KINDS:
        raise msgspec.ValidationError(f"kind {op.kind!r}; expected one of {', '.join(KINDS)}")
    if op.collective not in COLLECTIVES:
        raise msgspec.ValidationError(
            f"collective {op.collective!r}; expected one of {', '.join(filter(None, COLLECTIVES))}"
        )
    if not op.end_s >= op.start_s:
        raise msgspec.ValidationError(f"{op.name!r} ends at {op.end_s} s before it starts at {op.start_s} s")
    if not -_MOST_S <= op.start_s <= op.end_s <= _MOST_S:
        raise msgspec.ValidationError(
            f"{op.name!r} goes from {op.start_s} s to {op.end_s} s; expected seconds of a clock"
        )
    if not -1 <= op.step < _MOST_STEPS or not 0 <= op.size_bytes < _MOST_BYTES:
        raise msgspec.ValidationError(
            f"{op.name!r} has {op.size_bytes} bytes in step {op.step}; expected 0 or more, and -1 or more"
        )
    if not (
        max(map(abs, (op.seq, op.peer, op.tag))) < _MOST_BYTES
        and abs(op.enqueued_s) <= _MOST_S
        and 0 <= op.gradient_bytes < _MOST_BYTES
        and max(abs(op.cpu_s), abs(op.preempted_s)) <= _MOST_S
        and all(0 <= size < _MOST_BYTES for size in op.split_bytes)
    ):
        raise msgspec.ValidationError(f"{op.name!r} has a number that is out of all measure: {op}")
    return op


def _header(line: bytes, path: str | os.PathLike[str]) -> Header:
    foreign = (
        f"{os.fspath(path)} is no trace of wirewise; expected rank-R.jsonl files as `wirewise profile trace` "
        "writes them (read Kineto and Chakra files with their own readers)"
    )
    try:
        head: Any = decode_json(line)
    except msgspec.DecodeError as cause:
        raise TraceError(foreign) from cause
    if not isinstance(head, dict) or "format" not in head:
        raise TraceError(foreign)
    if head["format"] != FORMAT:
        raise TraceError(
            f"{os.fspath(path)} has format {head['format']!r}; this version reads format {FORMAT}: record "
            "again, or read it with the version that wrote it"
        )
    try:
        return checked_header(decode_json(line, Header))
    except msgspec.MsgspecError as cause:
        raise TraceError(
            f"{os.fspath(path)}, line 1: {cause}; the header is damaged: record again"
        ) from cause


def checked_header(header: Header) -> Header:
    """Return the header, if its numbers are valid.

    Raises:
        msgspec.ValidationError: A field is invalid; the message names it.
    """
    if not 0 <= header.rank < header.world_size <= MOST_RANKS:
        raise msgspec.ValidationError(
            f"rank {header.rank} of {header.world_size}; expected a rank below the number of ranks, which is at most "
            f"{MOST_RANKS}"
        )
    if not 1 <= header.comm_slots < _MOST_STEPS or not 0 <= header.link_bytes_per_s < _MOST_BYTES:
        raise msgspec.ValidationError(
            f"comm_slots {header.comm_slots} and link_bytes_per_s {header.link_bytes_per_s}; expected at least 1, and 0"
        )
    for name, ranks in header.groups.items():
        if not all(0 <= rank < MOST_RANKS for rank in ranks):
            raise msgspec.ValidationError(
                f"group {name!r} has the ranks {ranks[:8]}; expected numbers from 0 to {MOST_RANKS - 1}"
            )
    return header


def _check_one_run(headers: list[Header], source: str, partial: str) -> None:
    first = headers[0]
    for header in headers[1:]:
        for field in ("run", "world_size"):
            one, other = getattr(first, field), getattr(header, field)
            if one != other:
                raise TraceError(
                    f"{source} mixes runs: {field} is {one!r} on rank {first.rank} and {other!r} on rank "
                    f"{header.rank}; keep each run in a folder of its own"
                )
    found = [header.rank for header in headers]
    if twice := sorted({rank for rank in found if found.count(rank) > 1}):
        raise TraceError(f"{source} mixes runs: rank {twice[0]} is there twice; keep one trace a rank")
    missing = sorted(set(range(first.world_size)) - set(found))
    if missing and not partial:
        names = ", ".join(map(str, missing[:_MOST_NAMED])) + (" and others" * (len(missing) > _MOST_NAMED))
        raise TraceError(
            f"{source} has {len(found)} of {first.world_size} ranks: missing rank {names}; copy the traces of "
            "all ranks into one folder"
        )
    if extra := sorted(set(found) - set(range(first.world_size))):
        raise TraceError(
            f"{source} has rank {extra[0]} in a run of {first.world_size}; the header is damaged"
        )


def _clock_notes(ranks: list[RankTrace]) -> list[str]:
    """A run is at one time, so real-time clocks that are hours apart are set wrong somewhere."""
    times = {}
    for rank in ranks:
        pairs = rank.header.clock_pairs
        if pairs:
            times[rank.header.rank] = pairs[0][1] * 1e-9
    if len(times) < 2:
        return []
    early, late = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    apart = times[late] - times[early]
    if apart < _FAR_APART_S:
        return []
    return [
        f"the clocks of rank {early} and rank {late} are {apart / 3600:.1f} hours apart; alignment corrects that "
        "where the ranks share collectives or probes"
    ]
