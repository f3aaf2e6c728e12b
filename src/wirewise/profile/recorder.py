"""Collector of a rank's hook events, which it appends to the rank's trace step by step."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from wirewise.errors import TraceError
from wirewise.files import make_folder
from wirewise.instruments import FACTS
from wirewise.profile.clock import Clock, Mark
from wirewise.profile.processor import ProcessorTimes
from wirewise.trace.files import RankWriter, rank_file
from wirewise.trace.records import Header, Op, Probe

__all__ = ["Pending", "Recorder", "calling_thread", "header"]

_STEPS_A_CLOCK_READING = 100
_MOST_ROWS = 200_000
"""Maximum number of ops of a step, some 30 MB, after which forward passes are not recorded: an evaluation between two
optimizer steps may call modules without limit; training steps have fewer."""


def calling_thread() -> str:
    """Name of this thread; "main" also for C++ threads, which run while the main thread is blocked."""
    own = threading.current_thread()
    # Such threads have no Python object of their own.
    outside = own is threading.main_thread() or isinstance(own, threading._DummyThread)
    return "main" if outside else own.name


@dataclass(slots=True, eq=False)
class Pending:
    """Communication whose end is reported later by another thread or the device."""

    name: str
    group: str
    form: int
    start: Mark
    seq: int
    step: int
    size_bytes: int
    end: Mark | None = None
    waited: bool = False
    """Whether the main thread waited for it in Python code."""
    ends_with_wait: bool = False
    """Whether only the wait shows when it completes."""
    carried: bool = False
    """Whether a thread of the job executes it."""
    elsewhere: bool = False
    """Whether a thread other than the one that launched it waited for it, as for a message."""
    caller: str = field(default_factory=calling_thread)
    """Thread that handed it over."""


class Recorder:
    """Writer of one rank's trace.

    Args:
        folder: Folder for `rank-R.jsonl`; created if missing.
        first_line: Header of the trace.
        clock: Clock of the compute device.
        forgiving: Continue without a file if it is not writable; the job then runs as if unrecorded, and this rank
            still answers the others, which may be able to record.

    Raises:
        TraceError: The file is not writable.
    """

    def __init__(
        self, folder: str | os.PathLike[str], first_line: Header, clock: Clock, *, forgiving: bool = False
    ) -> None:
        self.header, self.clock, self.mark = first_line, clock, clock.mark
        self.active = False
        """Whether what happens now is recorded."""
        self.step = -1
        self.failed = False
        """Whether the file could not be written any more; what was written until then can be read."""
        try:
            make_folder(folder, error=TraceError)
            self._writer = RankWriter(rank_file(folder, first_line.rank), first_line)
        except TraceError as error:
            if not forgiving:
                raise
            self._writer = RankWriter(os.devnull, first_line)
            self._fail(error)
        self._forms: dict[Op, int] = {}
        self._rows: list[tuple[int, int, Mark, Mark, int]] = []
        self._pending: list[Pending] = []
        self._steps: list[tuple[int, Mark, Mark, ProcessorTimes]] = []
        self._groups = dict(first_line.groups)
        self._facts: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def form(self, name: str, kind: str, **more: Any) -> int:
        """Index of the form shared by ops that differ only in their times."""
        op = Op(name=name, kind=kind, start_s=0.0, end_s=0.0, step=-1, **more)
        with self._lock:
            number = self._forms.get(op)
            if number is None:
                number = self._forms[op] = len(self._forms)
                self._writer.form(op)
            return number

    @property
    def has_room(self) -> bool:
        """Whether this step still takes forward passes."""
        return len(self._rows) < _MOST_ROWS

    def add(self, form: int, start: Mark, end: Mark, seq: int = -1) -> None:
        """Add a finished op."""
        if self.active:
            self._rows.append((self.step, form, start, end, seq))

    def add_step(self, start: Mark, end: Mark, spent: ProcessorTimes) -> None:
        """Add a finished step and the CPU time of the script's thread in it."""
        if self.active:
            self._steps.append((self.step, start, end, spent))

    def open(self, name: str, group: str, form: int, start: Mark, seq: int, size_bytes: int) -> Pending:
        """Add a communication with an unknown end; it is written once `Pending.end` is set."""
        pending = Pending(name, group, form, start, seq, self.step, size_bytes)
        self._pending.append(pending)
        return pending

    def seconds(self, mark: Mark) -> float:
        """Time of a mark, in seconds; waits for the device if necessary."""
        seconds = self.clock.seconds(mark)
        if seconds is None:
            mark.synchronize()  # type: ignore[union-attr]
            seconds = self.clock.seconds(mark)
        return seconds or 0.0

    def wait_form(self, pending: Pending) -> int:
        """Form of the calling thread's waits for a communication."""
        group = pending.group if pending.seq >= 0 else ""
        return self.form(pending.name, "wait", group=group, thread=calling_thread())

    def number(self, group: str, ranks: list[int]) -> int:
        """Sequence number of the next collective of a group, the same on every rank."""
        with self._lock:
            if group not in self._groups:
                self._groups[group] = ranks
                self._writer.group(group, ranks)
            self._numbers[group] = number = self._numbers.get(group, -1) + 1
            return number

    def probes(self, probes: list[Probe]) -> None:
        """Add round trips and a reading of both clocks."""
        for probe in probes:
            self._writer.probe(probe)
        self._writer.clock(time.perf_counter(), time.time_ns())

    def discard(self) -> None:
        """Drop the ops of this step, which is not counted."""
        self._rows = [row for row in self._rows if row[0] != self.step]
        self._pending = [pending for pending in self._pending if pending.step != self.step]
        self._steps = [row for row in self._steps if row[0] != self.step]

    def flush(self) -> None:
        """Write everything that is finished; a full disk ends the recording, but never the job."""
        if self.failed:
            return
        try:
            self._write()
        except TraceError as error:
            self._fail(error)

    def _fail(self, error: TraceError) -> None:
        self.failed, self.active = True, False
        self._rows, self._pending, self._steps = [], [], []
        when = f"stopped recording in step {self.step}" if self.step >= 0 else "records nothing"
        sys.stderr.write(f"wirewise: rank {self.header.rank} {when}: {error}. The job goes on\n")

    def _write(self) -> None:
        over = [p for p in self._pending if p.end is not None]
        self._pending = [p for p in self._pending if p.end is None]
        rows = self._rows + [(p.step, p.form, p.start, p.end, p.seq) for p in over if p.end is not None]
        self._rows = []
        by_step: dict[int, list[tuple[int, int, int, int]]] = {}
        for step, form, start, end, seq in rows:
            begin_s, end_s = self.clock.seconds(start), self.clock.seconds(end)
            if begin_s is None or end_s is None:
                self._rows.append((step, form, start, end, seq))
                continue
            begin_us = int(begin_s * 1e6)
            by_step.setdefault(step, []).append((form, begin_us, max(int(end_s * 1e6), begin_us), seq))
        for step, short in sorted(by_step.items()):
            self._writer.times(step, short)
        self._write_steps()
        if self._facts != FACTS:
            self._facts = dict(FACTS)
            self._writer.environment(self._facts)
        if self.step % _STEPS_A_CLOCK_READING == 0:
            self._writer.clock(time.perf_counter(), time.time_ns())
        self._writer.flush()

    def _write_steps(self) -> None:
        steps, self._steps = self._steps, []
        for row in steps:
            step, start, end, spent = row
            begin_s, end_s = self.clock.seconds(start), self.clock.seconds(end)
            if begin_s is None or end_s is None:
                self._steps.append(row)
                continue
            # Whole microseconds, as those of ops.
            begin_s, end_s = int(begin_s * 1e6) * 1e-6, int(end_s * 1e6) * 1e-6
            op = Op(
                name="step",
                kind="step",
                start_s=begin_s,
                end_s=max(begin_s, end_s),
                step=step,
                **spent._asdict(),
            )
            self._writer.write([op])

    def close(self) -> None:
        """Write the remaining ops and close the file."""
        self.flush()
        try:
            self._writer.close()
        except TraceError as error:
            if not self.failed:
                self._fail(error)


def header(
    rank: int, world_size: int, groups: Mapping[str, list[int]], *, run: str, backend: str, device: str
) -> Header:
    """Header line of this rank's trace."""
    # Hosts of a lab share the name of the machine.
    host = socket.gethostname() + (f"-{place}" if (place := os.environ.get("WIREWISE_HOST")) else "")
    return Header(
        rank=rank,
        world_size=world_size,
        host=host,
        # One that is no number is the script's affair, which a recording never ends.
        local_rank=int(text) if (text := os.environ.get("LOCAL_RANK", "")).isdecimal() else 0,
        groups=dict(groups),
        run=run,
        comm_slots=1 if "nccl" in backend else 2,
        clock_pairs=[(time.perf_counter(), time.time_ns())],
        environment={
            "torch": str(torch.__version__),
            "backend": backend,
            "device": device,
            "threads": str(torch.get_num_threads()),
        },
    )
