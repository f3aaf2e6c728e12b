"""Utilisation of a rank's device, or of its host if no device was recorded, and causes of idle time.

Busy time and overlap are defined as by HolisticTraceAnalysis (temporal breakdown, overlap of communication and
computation): the wall clock of a device runs from the start of its first kernel to the end of its last, of those that
were launched before the last of several steps, which a profiler may not have recorded whole. A device is idle when no
stream is running. Causes are assigned to such times of the whole device; those of HolisticTraceAnalysis are per
stream, whose gaps may be filled by other streams' kernels.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.sim.arrivals import waits_of
from wirewise.sim.breakdown import clip, length, union
from wirewise.trace.kernels import COPY
from wirewise.trace.records import Op, RankTrace, Trace
from wirewise.trace.segments import own_work

__all__ = ["RankUse", "collectives_of", "exposed_by_group", "rank_uses", "unrecorded_share"]

Intervals = NDArray[np.float64]

_DATA = " data"
"""Key of waiting for data among names of ops."""
_LAUNCH_GAP_S = 30e-6
"""Shorter gaps before a kernel that was launched in time are what it takes to start one."""


class RankUse(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of the mean step of a rank, in seconds.

    compute_s + exposed_communication_s + copy_s + idle_s is wall_s; the three causes of idle time add up to idle_s.
    Waiting for stragglers is part of communication, waiting for data part of the host's activity meanwhile.
    """

    rank: int
    lane: str
    """Lane of the figures: "device", or "host" if the trace has no kernels."""
    steps: int
    step_s: float
    """Seconds of a step as the host marked it."""
    wall_s: float
    """Seconds of a step on the lane, including idle time."""
    compute_s: float
    """Seconds in which kernels compute, with or without overlapping communication."""
    communication_s: float
    """Seconds in which kernels communicate."""
    exposed_communication_s: float
    """Seconds in which kernels communicate and none computes."""
    copy_s: float
    """Seconds in which copies run and no kernel computes or communicates."""
    idle_s: float
    """Seconds in which nothing runs."""
    host_wait_s: float
    """Idle seconds before kernels that were launched only after the previous one had ended."""
    kernel_wait_s: float
    """Idle seconds in short gaps before kernels that were launched in time."""
    other_idle_s: float
    """Idle seconds in longer gaps before kernels that were launched in time, or at an unknown time."""
    unrecorded_s: float
    """Seconds of the step in which neither the device nor the host recorded anything."""
    late_wait_s: float = 0.0
    """Seconds of communication in which the rank waits for later ranks; only ranks whose files were recorded count."""
    exposed_late_wait_s: float = 0.0
    """Seconds of such waiting that no compute overlaps."""
    data_wait_s: float = 0.0
    """Seconds in which nothing runs on the device while the host waits for data."""
    host_name: str = ""
    """Main activity of the host while nothing runs on the device; empty if nothing was recorded."""
    host_name_s: float = 0.0
    """Seconds of the host's main activity."""

    @property
    def overlap_share(self) -> float | None:
        """Fraction of communication that overlaps with compute. None if there was no communication."""
        if self.communication_s <= 0:
            return None
        return 1.0 - self.exposed_communication_s / self.communication_s

    @property
    def idle_share(self) -> float:
        """Idle fraction of the wall-clock time."""
        return self.idle_s / self.wall_s if self.wall_s > 0 else 0.0


def rank_uses(trace: Trace) -> list[RankUse]:
    """Utilisation of the device, or else the host, of each recorded rank."""
    chosen = collectives_of(trace)
    waits = waits_of(trace.ranks, chosen)
    found = []
    for place, rank in enumerate(trace.ranks):
        late = np.array(
            [
                (op.start_s, op.start_s + wait)
                for op, wait in zip(chosen[place], waits[place], strict=True)
                if wait
            ]
        ).reshape(-1, 2)
        found.append((_of_device if any(op.stream for op in rank.ops) else _of_host)(rank, union(late)))
    return found


def collectives_of(trace: Trace) -> dict[int, list[Op]]:
    """Communication of each rank, by its index, in the steps that count."""
    return {
        place: [op for op in _counted(rank) if op.kind == "communication"]
        for place, rank in enumerate(trace.ranks)
    }


def exposed_by_group(recorded: RankTrace) -> dict[str, float]:
    """Exposed communication per process group in the mean step, in seconds."""
    marks, ops = _step_marks(recorded), _counted(recorded)
    device = any(op.stream for op in ops)
    steps = max(len(marks) - (device and len(marks) > 1), 1)
    working = [op for op in ops if op.stream or not device]
    compute = _spans([op for op in working if op.kind not in ("communication", "wait", "step")])
    groups: dict[str, list[Op]] = {}
    for op in working:
        if op.kind == "communication":
            groups.setdefault(op.group, []).append(op)
    busy = length(union(compute))
    return {
        name: (length(union(np.concatenate([compute, _spans(own)]))) - busy) / steps
        for name, own in groups.items()
    }


def _counted(recorded: RankTrace) -> list[Op]:
    """Kernels of the steps that count, or where none were recorded what the host recorded."""
    kernels = [op for op in recorded.ops if op.stream]
    return _kernels(kernels, _step_marks(recorded)) if kernels else recorded.ops


def _step_marks(recorded: RankTrace) -> list[Op]:
    return sorted((op for op in recorded.ops if op.kind == "step"), key=lambda op: op.start_s)


def unrecorded_share(trace: Trace) -> float:
    """Fraction of the mean rank's step in which neither host nor device has records, in [0, 1]."""
    uses = rank_uses(trace)
    whole = sum(use.step_s for use in uses)
    return sum(use.unrecorded_s for use in uses) / whole if whole > 0 else 0.0


def _of_device(recorded: RankTrace, late: Intervals) -> RankUse:
    marks = _step_marks(recorded)
    kernels = _counted(recorded)
    kept = marks[:-1] if len(marks) > 1 else marks
    steps = max(len(kept), 1)
    spans = _spans(kernels)
    busy = union(spans)
    communicates = np.array([op.kind == "communication" for op in kernels])
    copies = np.array([COPY.match(op.name) is not None for op in kernels]) & ~communicates
    compute, communication = union(spans[~communicates & ~copies]), union(spans[communicates])
    working = length(union(spans[~copies]))
    low, high = float(busy[0, 0]), float(busy[-1, 1])
    host_wait, kernel_wait, other = _idle(kernels, spans, busy)
    begin, end = (kept[0].start_s, kept[-1].end_s) if kept else (low, high)
    host = _spans([op for op in recorded.ops if not op.stream and op.kind not in ("step", "communication")])
    recorded_s = length(clip(union(np.concatenate([busy, host])), begin, end))
    doing = _while_idle(recorded, busy, begin, end)
    data = doing.pop(_DATA, 0.0)
    most = max(doing, key=doing.__getitem__, default="")
    return RankUse(
        rank=recorded.header.rank,
        lane="device",
        steps=steps,
        step_s=float(np.mean([op.end_s - op.start_s for op in kept])) if kept else (end - begin) / steps,
        wall_s=(high - low) / steps,
        compute_s=length(compute) / steps,
        communication_s=length(communication) / steps,
        exposed_communication_s=(working - length(compute)) / steps,
        copy_s=(length(busy) - working) / steps,
        idle_s=(high - low - length(busy)) / steps,
        host_wait_s=host_wait / steps,
        kernel_wait_s=kernel_wait / steps,
        other_idle_s=other / steps,
        unrecorded_s=max(end - begin - recorded_s, 0.0) / steps,
        late_wait_s=length(late) / steps,
        exposed_late_wait_s=(length(union(np.concatenate([late, compute]))) - length(compute)) / steps,
        data_wait_s=data / steps,
        host_name=most,
        host_name_s=doing.get(most, 0.0) / steps,
    )


def _while_idle(recorded: RankTrace, busy: Intervals, begin: float, end: float) -> dict[str, float]:
    """Seconds of what the host does while nothing runs on the device, by name; of waiting for data by `_DATA`."""
    edges = np.concatenate([[begin], clip(busy, begin, end).ravel(), [end]]).reshape(-1, 2)
    starts, lengths = edges[:, 0], np.maximum(edges[:, 1] - edges[:, 0], 0.0)
    before = np.concatenate([[0.0], np.cumsum(lengths)])

    def idle_until(at: NDArray[np.float64]) -> NDArray[np.float64]:
        place = np.searchsorted(starts, at, side="right") - 1
        inside = np.clip(at - starts[np.maximum(place, 0)], 0.0, lengths[np.maximum(place, 0)])
        return np.where(place < 0, 0.0, before[np.maximum(place, 0)] + inside)

    ops = [op for op in recorded.ops if not op.stream and op.kind not in ("step", "communication")]
    spans, found = _spans(ops), dict[str, float]()
    seconds = idle_until(np.minimum(spans[:, 1], end)) - idle_until(np.maximum(spans[:, 0], begin))
    for op, value in zip(ops, seconds.tolist(), strict=True):
        if value > 0:
            name = _DATA if op.kind == "data" else op.name
            found[name] = found.get(name, 0.0) + value
    return found


def _kernels(ops: list[Op], marks: list[Op]) -> list[Op]:
    """Kernels that were launched before the last of several steps began, else all."""
    if len(marks) < 2:
        return ops
    last = marks[-1].start_s
    # Of what ran without a recorded launch nobody knows to which step it belongs.
    kept = [op for op in ops if -1.0 != op.enqueued_s < last]
    return kept or ops


def _idle(kernels: list[Op], spans: Intervals, busy: Intervals) -> tuple[float, float, float]:
    """Seconds in which nothing ran: until late launches, short gaps, all else."""
    launched = np.array([np.nan if op.enqueued_s == -1.0 else op.enqueued_s for op in kernels])
    order = np.argsort(spans[:, 0], kind="stable")
    # The kernel that ends each gap.
    after = launched[order][np.searchsorted(spans[order, 0], busy[1:, 0])]
    gaps = busy[1:, 0] - busy[:-1, 1]
    late = after > busy[:-1, 1]
    short = ~late & ~np.isnan(after) & (gaps < _LAUNCH_GAP_S)
    found = [float(gaps[chosen].sum()) for chosen in (late, short, ~late & ~short)]
    return found[0], found[1], found[2]


def _of_host(recorded: RankTrace, late: Intervals) -> RankUse:
    marks = [op for op in recorded.ops if op.kind == "step"]
    whole = union(_spans(marks or recorded.ops))
    steps = max(len(marks), 1)
    work = [(piece.start_s, piece.end_s) for _, piece in own_work(recorded.ops)]
    compute = _inside(np.array(work).reshape(-1, 2), whole)
    moved = _inside(_spans([op for op in recorded.ops if op.kind == "communication"]), whole)
    both = _inside(np.concatenate([compute, moved]), whole)
    anything = _inside(_spans([op for op in recorded.ops if op.kind != "step"]), whole)
    wall, idle = length(whole), length(whole) - length(both)
    return RankUse(
        rank=recorded.header.rank,
        lane="host",
        steps=steps,
        step_s=wall / steps,
        wall_s=wall / steps,
        compute_s=length(compute) / steps,
        communication_s=length(moved) / steps,
        exposed_communication_s=(length(both) - length(compute)) / steps,
        copy_s=0.0,
        idle_s=idle / steps,
        host_wait_s=0.0,
        kernel_wait_s=0.0,
        other_idle_s=idle / steps,
        unrecorded_s=(wall - length(anything)) / steps,
        late_wait_s=length(late) / steps,
        exposed_late_wait_s=(length(union(np.concatenate([late, compute]))) - length(compute)) / steps,
    )


def _spans(ops: list[Op]) -> Intervals:
    return np.array([(op.start_s, op.end_s) for op in ops], dtype=np.float64).reshape(-1, 2)


def _inside(intervals: Intervals, whole: Intervals) -> Intervals:
    """The union of intervals, as far as it lies in disjoint ones."""
    own = union(intervals)
    parts = [clip(own[(own[:, 1] > a) & (own[:, 0] < b)], a, b) for a, b in whole.tolist()]
    return np.concatenate(parts) if parts else own
