"""Traces of torch.profiler (Kineto) as traces of ranks.

The content of such a file depends on the backend. NCCL kernels carry their group and sequence number. gloo
collectives have neither: their executions, on separate threads, are paired with the calls in order, for each kind, or
exactly with an execution trace (`chakra`). Runs of a reduce_scatter are named all_reduce by gloo; the call tells them
apart.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from wirewise.errors import TraceError
from wirewise.trace import chakra
from wirewise.trace.device_collectives import may_communicate
from wirewise.trace.files import MOST_RANKS, assemble, checked, checked_header, missing_ranks
from wirewise.trace.kernels import (
    COPY,
    Launches,
    collective_of,
    is_launch,
    is_on_device,
    payload_bytes,
)
from wirewise.trace.profile_checks import check_steps, check_times
from wirewise.trace.profiles import ProfileEvent, ProfileFile, collective_name, load, shapes, tensor_bytes
from wirewise.trace.python_frames import FRAME, script_spans
from wirewise.trace.records import Header, Op, RankTrace, Trace

__all__ = ["read", "read_all"]

_STEP = re.compile(r"ProfilerStep#(\d+)")
_GLOO = re.compile(r"gloo:(\w+)")
_BACKWARD = re.compile(r"autograd::|torch::autograd|Backward\d*$")
_OPAQUE = (
    ("Optimizer.step", "optimizer"),
    ("Optimizer.zero_grad", "other"),
    ("enumerate(DataLoader)", "data"),
)
_MAIN_MARKS = ("ProfilerStep#", "DistributedDataParallel.forward", "Optimizer.step")
_RECORD = "Record function id"
_BETWEEN_DEVICES = re.compile(r"Memcpy PtoP|CopyPeer", re.IGNORECASE)
_NO_WORK = ("Trace", "overhead", "ac2g", "gpu_user_annotation")


def read_all(
    paths: Iterable[str | os.PathLike[str]],
    *,
    execution_traces: Sequence[str | os.PathLike[str]] = (),
    partial: bool = False,
) -> Trace:
    """Read the files of all ranks of a run, on the clock of the first.

    Args:
        paths: One file per rank.
        execution_traces: Execution traces of the same ranks in the same order, or none.
        partial: Whether some ranks of the run suffice (`Trace.partial`).

    Raises:
        TraceError: Raised by `read`; or a rank is missing or duplicate, ranks are of different runs, or there is no
            common step.
    """
    files = list(paths)
    beside: Sequence[str | os.PathLike[str] | None] = list(execution_traces) or [None] * len(files)
    if not files or len(beside) != len(files):
        raise TraceError(
            f"got {len(files)} profiles and {len(execution_traces)} execution traces; expected one of each a rank"
        )
    read_ones = [_read(path, other, None) for path, other in zip(files, beside, strict=True)]
    missing = _missing(read_ones)
    read_ones = _of_known_size(read_ones)
    if not (partial and missing):
        if missing and len(read_ones) == 1 and not read_ones[0].sized:
            raise TraceError(
                f"{os.fspath(files[0])}: {missing}; expected the files of all ranks, which tell world_size"
            )
        for one in read_ones:
            _check_told(one)
    bases = [one.base_ns for one in read_ones if one.base_ns]
    first = min(bases, default=0)
    ranks = [_rebased(one.rank, one.base_ns - first if one.base_ns else 0, first) for one in read_ones]
    trace = assemble(ranks, str(Path(files[0]).parent), partial=missing if partial else "")
    trace.notes += [f"rank {one.rank.header.rank}: {note}" for one in read_ones for note in one.notes]
    if partial and missing:
        trace.notes += [one.refused for one in read_ones if one.refused]
    if not trace.steps():
        raise TraceError("no steps that all ranks have; call `profiler.step()` once a step on all ranks")
    return trace


def read(
    path: str | os.PathLike[str],
    *,
    execution_trace: str | os.PathLike[str] | None = None,
    rank_of: tuple[int, int] | None = None,
) -> RankTrace:
    """Read one rank's file; times are seconds since its base time.

    Args:
        path: Output of `export_chrome_trace`, plain or compressed.
        execution_trace: Output of ExecutionTraceObserver in the same run.
        rank_of: (rank, number of ranks), if the file lacks them.

    Raises:
        TraceError: The file is unreadable, communicates without rank information, or has several ranks but no
            communication.
    """
    found = _read(path, execution_trace, rank_of)
    _check_told(found)
    return found.rank


class _Found(NamedTuple):
    """Content of a file."""

    rank: RankTrace
    base_ns: int
    """Base time of the file; 0: not known."""
    notes: list[str]
    refused: str
    """Why the rank cannot be one of several that are put together; empty: it can."""
    sized: bool
    """Whether the file tells of how many ranks the run was."""


def _check_told(found: _Found) -> None:
    if found.refused:
        raise TraceError(found.refused)


def _missing(found: list[_Found]) -> str:
    """Ranks without a file, in words; empty: none is known to be missing."""
    talks = any(op.kind == "communication" for one in found for op in one.rank.ops)
    if len(found) == 1 and not found[0].sized and (talks or found[0].rank.header.rank > 0):
        return f"only rank {found[0].rank.header.rank} is there, of a run that does not tell how many ranks it had"
    return missing_ranks([one.rank.header for one in _of_known_size(found)])


def _of_known_size(found: list[_Found]) -> list[_Found]:
    """Files with as many ranks as the highest number tells, where no file tells how many there were."""
    if any(one.sized for one in found):
        return found
    size = 1 + max(one.rank.header.rank for one in found)
    return [one._replace(rank=_of_size(one.rank, size)) for one in found]


def _of_size(rank: RankTrace, size: int) -> RankTrace:
    groups = {name: list(range(size)) for name in rank.header.groups}
    header = msgspec.structs.replace(rank.header, world_size=size, groups=groups)
    return RankTrace(header, rank.ops, rank.complete)


def _read(
    path: str | os.PathLike[str],
    execution_trace: str | os.PathLike[str] | None,
    rank_of: tuple[int, int] | None,
) -> _Found:
    profile = load(path)
    calls = chakra.read(execution_trace).calls() if execution_trace is not None else {}
    try:
        reader = _Reader(profile, os.fspath(path), rank_of)
        ops = [checked(op) for op in reader.steps() + reader.work() + reader.communication(calls)]
        header = checked_header(reader.header(ops))
        base = int(profile.head.get("baseTimeNanoseconds") or 0)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, msgspec.MsgspecError) as cause:
        # The form is torch's own and told nowhere; any field of a damaged file may be anything.
        raise TraceError(
            f"{os.fspath(path)} is not as torch.profiler writes it ({type(cause).__name__}: {cause}); the file is "
            "damaged: record it again"
        ) from cause
    if not base:
        reader.notes.append("the file does not tell its base time; align the trace before use")
    ops.sort(key=lambda op: (op.start_s, -op.end_s))
    sized = reader.sized
    return _Found(RankTrace(header, ops, profile.complete), base, reader.notes, reader.refused, sized)


def _rebased(rank: RankTrace, later_ns: int, base_ns: int) -> RankTrace:
    """Times since `base_ns`, which was `later_ns` before the base time of the file."""
    shift = later_ns * 1e-9
    ops = [
        msgspec.structs.replace(
            op,
            start_s=op.start_s + shift,
            end_s=op.end_s + shift,
            enqueued_s=op.enqueued_s + shift if op.enqueued_s != -1.0 else -1.0,
        )
        for op in rank.ops
    ]
    pairs = [(0.0, base_ns)] if base_ns else []
    return RankTrace(msgspec.structs.replace(rank.header, clock_pairs=pairs), ops, rank.complete)


class _Reader:
    def __init__(self, profile: ProfileFile, source: str, rank_of: tuple[int, int] | None) -> None:
        self.source, self.head = source, profile.head
        self.notes: list[str] = []
        # The span of the whole recording, and spans of the profiler's own threads, are no work.
        own = (e for e in profile.events if e.ph == "X" and e.cat not in _NO_WORK)
        self.spans = sorted(own, key=lambda e: (e.ts, -e.dur))
        named = [e for e in profile.events if e.name == "thread_name"]
        self.loops = {(e.pid, e.tid) for e in named if "pt_gloo_runloop" in str(e.args.get("name", ""))}
        self.info: dict[str, Any] = self.head.get("distributedInfo") or {}
        self.rank, self.world_size = rank_of or (
            int(self.info.get("rank", 0)),
            int(self.info.get("world_size", 1 + int(self.info.get("rank", 0)))),
        )
        if not 0 <= self.rank < self.world_size <= MOST_RANKS:
            raise ValueError(f"rank {self.rank} of {self.world_size}")
        self.sized = rank_of is not None or "world_size" in self.info
        self.told = rank_of is not None or "rank" in self.info
        self.refused = ""
        self.launches = Launches(self.spans)
        check_times(self.spans, source, is_on_device, self.launches.of)
        self.main = self._main_threads()
        self.marks = self._marks()
        check_steps(self.marks, source)

    def _main_threads(self) -> set[tuple[int | str, int | str]]:
        """The thread of the script, and those of the backward pass, during which it is blocked."""
        host = [e for e in self.spans if e.cat in ("cpu_op", "user_annotation")]
        own = {(e.pid, e.tid) for e in host if e.name.startswith(_MAIN_MARKS)}
        if not own:
            counts: dict[tuple[int | str, int | str], int] = defaultdict(int)
            for e in host:
                counts[e.pid, e.tid] += (e.pid, e.tid) not in self.loops
            own = {max(counts, key=counts.__getitem__)} if counts else set()
        return own | {(e.pid, e.tid) for e in host if _BACKWARD.search(e.name)} - self.loops

    def _marks(self) -> list[tuple[float, float, int]]:
        """(start, end, number) of the steps."""
        found: dict[int, tuple[float, float]] = {}
        for e in self.spans:
            if (number := _STEP.fullmatch(e.name)) and (e.pid, e.tid) in self.main:
                found.setdefault(int(number[1]), (e.ts, e.end))
        if not found and self.spans:
            self.notes.append("no ProfilerStep marks: all is one step; call `profiler.step()` once a step")
            return [(self.spans[0].ts, max(e.end for e in self.spans), 0)]
        return [(start, end, number) for number, (start, end) in sorted(found.items())]

    def _step(self, at: float) -> int:
        return next((number for start, end, number in self.marks if start <= at < end), -1)

    def steps(self) -> list[Op]:
        return [
            Op(name="step", kind="step", start_s=start * 1e-6, end_s=end * 1e-6, step=number)
            for start, end, number in self.marks
        ]

    def work(self) -> list[Op]:
        """Outermost operators of the main thread, and kernels of each stream that do not communicate."""
        chosen = self._outermost()
        last_backward = {self._step(e.ts): e.ts for e, kind in chosen if kind == "backward"}
        ops = []
        for e, known in chosen:
            step = self._step(e.ts)
            kind = known or ("forward" if e.ts < last_backward.get(step, float("inf")) else "other")
            name = e.name.removeprefix("autograd::engine::evaluate_function: ")
            ops.append(_op(e, name, kind, step))
        ops += self._script(chosen)
        self._note_unknown()
        for e in self.spans:
            if is_on_device(e) and not self.launches.communicates(e):
                # Copies keep their kind by their name.
                copies = "mem" in e.cat.lower() and not COPY.match(e.name)
                launch = self.launches.of(e)
                ops.append(
                    _op(
                        e,
                        f"Memcpy {e.name}" if copies else e.name,
                        "other",
                        self._step(e.ts),
                        thread=f"stream {_stream(e)}",
                        stream=_stream(e),
                        enqueued_s=-1.0 if launch is None else min(launch.ts, e.ts) * 1e-6,
                    )
                )
        return ops

    def _note_unknown(self) -> None:
        """Say which kernels of no known library may touch several devices, and how copies between devices count."""
        own = {e.name for e in self.spans if is_on_device(e) and not self.launches.communicates(e)}
        if unknown := sorted(name for name in own if COPY.match(name) is None and may_communicate(name)):
            names = ", ".join(repr(name[:60]) for name in unknown[:3])
            self.notes.append(
                f"{len(unknown)} kinds of kernels may communicate by their names and count as compute: {names}"
            )
        if any(_BETWEEN_DEVICES.search(name) for name in own):
            self.notes.append("copies between devices (Memcpy PtoP) count as copies, not as communication")

    def _script(self, chosen: Iterable[tuple[ProfileEvent, str]]) -> list[Op]:
        """Activity of the main thread between operators, where functions of Python were recorded."""
        frames: dict[tuple[int | str, int | str], list[ProfileEvent]] = defaultdict(list)
        for e in self.spans:
            if e.cat == FRAME and (e.pid, e.tid) in self.main:
                frames[e.pid, e.tid].append(e)
        if not frames:
            return []
        # It is blocked while another thread computes gradients.
        work = [(e.ts, e.end) for e, _ in chosen]
        main = max(frames.values(), key=len)
        return [
            Op(name=name, kind="other", start_s=start * 1e-6, end_s=end * 1e-6, step=self._step(start))
            for name, start, end in script_spans(main, work)
        ]

    def _outermost(self) -> list[tuple[ProfileEvent, str]]:
        """Events with nothing of interest around them, with their kind where the name tells."""
        found: list[tuple[ProfileEvent, str]] = []
        until: dict[tuple[int | str, int | str], float] = defaultdict(lambda: -float("inf"))
        for e in self.spans:
            thread = (e.pid, e.tid)
            # Calls of the runtime outside of operators are work too, such as a synchronisation.
            if thread not in self.main or not (e.cat in ("cpu_op", "user_annotation") or is_launch(e)):
                continue
            kind = next((kind for start, kind in _OPAQUE if e.name.startswith(start)), "")
            if not kind and _BACKWARD.search(e.name):
                kind = "backward"
            # Other annotations only hold what is of interest.
            inside = e.ts < until[thread]
            if inside or (e.cat == "user_annotation" and not kind) or _GLOO.match(e.name):
                continue
            until[thread] = e.end
            found.append((e, kind))
        return found

    def communication(self, calls: dict[int, int]) -> list[Op]:
        """Collectives; `refused` tells what speaks against several ranks or none.

        Args:
            calls: Record id of the call of each of gloo's runs.
        """
        kernels = [e for e in self.spans if is_on_device(e) and self.launches.communicates(e)]
        runs = [e for e in self.spans if _GLOO.fullmatch(e.name) and (e.pid, e.tid) not in self.main]
        if any(_GLOO.fullmatch(e.name) and (e.pid, e.tid) in self.main for e in self.spans):
            self.notes.append(
                "gloo's send and recv tell when they were posted, not how long they took; left out"
            )
        ops = self._kernels(kernels) + self._runs(runs, calls)
        if not ops and self.world_size > 1:
            self.refused = (
                f"{self.source} is of rank {self.rank} of {self.world_size} but has no communication: expected "
                "events gloo:... on threads pt_gloo_runloop, or kernels of NCCL or of another library of collectives; "
                "record whole steps, with ProfilerActivity.CUDA where a device is used"
            )
        if ops and not self.told:
            self.refused = (
                f"{self.source} communicates but does not tell its rank (no distributedInfo); start the profiler "
                "after init_process_group, or give the rank"
            )
        if ops and not all(op.size_bytes or op.collective == "barrier" for op in ops):
            self.notes.append("some collectives do not tell their bytes; record with record_shapes=True")
        return ops

    def _kernels(self, kernels: list[ProfileEvent]) -> list[Op]:
        """NCCL kernels, with what the call that started them tells."""
        rows = []
        for e in kernels:
            call, launch = self.launches.call(e), self.launches.of(e)
            args = {**(call.args if call else {}), **e.args}
            told = call or launch
            start = min(told.ts, e.ts) if told else e.ts
            rows.append((start, told is not None, e, args, collective_of(e, call), payload_bytes(e, call)))
        numbered = all(isinstance(args.get("Seq"), int) for *_, args, _, _ in rows)
        counts: dict[str, int] = defaultdict(int)
        ops = []
        for start, known, e, args, name, size in rows:
            group = str(args.get("Process Group Name", "nccl"))
            message = name in ("send", "recv")
            number = -1 if message else int(args["Seq"]) if numbered else counts[group]
            counts[group] += not message
            peer = args.get("Dst Rank" if name == "send" else "Src Rank", -1) if message else -1
            ops.append(
                _op(
                    e,
                    name or e.name,
                    "communication",
                    self._step(start),
                    thread="comm",
                    stream=_stream(e),
                    group=group,
                    seq=number,
                    collective=name,
                    size_bytes=size,
                    peer=int(peer),
                    enqueued_s=start * 1e-6 if known else -1.0,
                )
            )
        if rows and not numbered:
            self.notes.append(
                "kernels do not tell their numbers; they were counted, so record the same steps"
            )
        return ops

    def _runs(self, runs: list[ProfileEvent], calls: dict[int, int]) -> list[Op]:
        """Runs of gloo's collectives with the calls that they belong to."""
        names = [
            e for e in self.spans
            if e.name.startswith("c10d::") and collective_name(e.name) not in ("", "send", "recv")
        ]  # fmt: skip
        paired = self._pairs(runs, names, calls)
        group = self._gloo_group()
        rows = [(call.ts if call else run.ts, run, call) for run, call in zip(runs, paired, strict=True)]
        unpaired = sum(call is None for *_, call in rows)
        if unpaired:
            self.notes.append(f"{unpaired} collectives were called before the recording began")
        ops = []
        # Numbers follow the calls, which all ranks make in one order; runs may overtake each other.
        for number, (at, run, call) in enumerate(sorted(rows, key=lambda row: (row[0], row[1].ts))):
            name = collective_name(call.name if call else run.name)
            size = next((s for s in (tensor_bytes(*pair) for pair in shapes(run.args)) if s), 0)
            ops.append(
                _op(
                    run,
                    name,
                    "communication",
                    self._step(at),
                    thread="comm",
                    group=group,
                    seq=number,
                    collective=name,
                    size_bytes=size,
                    enqueued_s=at * 1e-6,
                )
            )
        return ops

    @staticmethod
    def _pairs(
        runs: list[ProfileEvent], names: list[ProfileEvent], calls: dict[int, int]
    ) -> list[ProfileEvent | None]:
        """The call of each run: the one that `calls` tells, else the first of its kind that has none."""
        by_record = {_record_of(e): e for e in names if _RECORD in e.args}
        found = [by_record.get(calls.get(_record_of(run), -1)) for run in runs]
        told = {id(call) for call in found}
        waiting: dict[str, deque[ProfileEvent]] = defaultdict(deque)
        for e in names:
            if id(e) not in told:
                waiting[_run_name(e.name)].append(e)
        for place, run in enumerate(runs):
            queue = waiting[collective_name(run.name)]
            if found[place] is None and queue and queue[0].ts <= run.ts:
                found[place] = queue.popleft()
        return found

    def _gloo_group(self) -> str:
        groups = self.info.get("pg_config") or []
        if len(groups) > 1:
            self.notes.append(
                f"gloo's runs do not tell their group; the collectives of {len(groups)} groups count as one group"
            )
        return str(groups[0].get("pg_name", "gloo")) if len(groups) == 1 else "gloo"

    def header(self, ops: list[Op]) -> Header:
        everyone = list(range(self.world_size))
        groups = {op.group: everyone for op in ops if op.group}
        for one in self.info.get("pg_config") or []:
            name, ranks = str(one.get("pg_name", "")), one.get("ranks")
            if isinstance(ranks, list) and ranks and name in groups:
                groups[name] = [int(r) for r in ranks]
        nccl = any(op.stream and op.kind == "communication" for op in ops)
        return Header(
            rank=self.rank,
            world_size=self.world_size,
            host=str(self.head.get("host_name") or f"rank{self.rank}"),
            groups=groups,
            comm_slots=1 if nccl else 2,
            clock_pairs=[],
        )


def _stream(e: ProfileEvent) -> str:
    return str(e.args.get("stream", e.tid))


def _run_name(call: str) -> str:
    """The collective by whose name gloo shows the runs of a call."""
    name = collective_name(call)
    # It reduces all and keeps a part.
    return "all_reduce" if name == "reduce_scatter" else name


def _op(e: ProfileEvent, name: str, kind: str, step: int, **more: Any) -> Op:
    return Op(name=name, kind=kind, start_s=e.ts * 1e-6, end_s=e.end * 1e-6, step=step, **more)


def _record_of(event: ProfileEvent) -> int:
    """Number "Record function id" of an event; -1 where it has none, or none that is a number."""
    try:
        return int(event.args.get(_RECORD, -1))
    except (TypeError, ValueError, OverflowError):
        return -1
