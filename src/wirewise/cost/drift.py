"""Detect when a running job got slower or larger, and on which rank, from windows of its steps."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["DriftRule", "LinkWindow", "StepWindow", "WatchEvent", "read_history"]

_BASELINE = 4
"""Windows whose median is the usual step; the first one is left out, as allocators and caches fill in it."""
_PATIENCE = 2
"""Windows that a drift must last, so that one checkpoint or evaluation is none."""
_DEVIATIONS = 3.0
"""Median absolute deviations of the usual windows that a drift must exceed, in addition to its fraction."""
_BUSIER, _SLOWER_CLOCK = 0.20, 0.10
"""Change of a host's load, and of a GPU's clock, that is reported with a rank that computes longer."""
_MEMORY_SHARE, _MEMORY_BYTES, _MEMORY_WINDOWS = 0.10, 32 << 20, 4
"""Memory growth of a rank that is reported: by a tenth and 32 MiB, in each of four successive windows."""


class LinkWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Rate at which a rank sent to another host over a window of steps."""

    peer: int
    """First rank of the other host."""
    bytes_per_s: float
    """Bytes per second of a connection while it had bytes in flight."""
    usual_bytes_per_s: float
    limit_bytes_per_s: float
    """Rate below which it is slower than noise explains."""

    @property
    def is_slow(self) -> bool:
        """Whether the rate is lower than noise explains."""
        return self.bytes_per_s < self.limit_bytes_per_s


class StepWindow(msgspec.Struct, frozen=True, kw_only=True, tag="window"):
    """Means of each rank over a window of steps, [ranks] each."""

    step: int
    """Index of the last step."""
    step_s: tuple[float, ...]
    data_s: tuple[float, ...]
    """Seconds of a step that the script waits for a DataLoader."""
    exchange_s: tuple[float, ...]
    """Seconds from the last gradient to the optimizer: exposed gradient exchange, and waiting for stragglers."""
    memory_bytes: tuple[int, ...]
    """Resident memory, and that allocated on the device."""
    processors: tuple[float | None, ...] = ()
    """CPUs that each rank's process keeps busy, without its children. Empty in older histories."""
    host_use: tuple[float | None, ...] = ()
    """CPU utilization of each rank's host. None if psutil is missing."""
    device_use: tuple[float | None, ...] = ()
    """Utilization of each rank's GPU. None without a GPU or nvidia-ml-py."""
    device_clock_hz: tuple[float | None, ...] = ()
    """Clock rate of each rank's GPU at the end of the window. None as for `device_use`."""
    links: tuple[LinkWindow | None, ...] = ()
    """The link of each rank that fell most below its usual rate. None if it sent too little to other hosts."""

    @property
    def computed_s(self) -> NDArray[np.float64]:
        """Step time of each rank without data loading and gradient exchange, in seconds."""
        return np.array(self.step_s) - np.array(self.data_s) - np.array(self.exchange_s)


class WatchEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """Drift that was detected."""

    step: int
    cause: str
    """ "data", "compute", "network", "memory" or "faster"."""
    rank: int | None
    """Rank that caused it, or that sends over the link. None if all ranks did."""
    sentence: str


_LINE: msgspec.json.Decoder[StepWindow | WatchEvent] = msgspec.json.Decoder(StepWindow | WatchEvent)


class DriftRule:
    """Comparison of windows with the baseline; a drift is reported once, and then becomes the baseline.

    Args:
        share: Threshold of a drift, as a fraction of the slowest rank's step time.

    Raises:
        InputError: The threshold is not between 0 and 1.
    """

    def __init__(self, share: float = 0.10) -> None:
        if not 0 < share < 1:
            raise InputError(f"got a drift of {share}; expected a share of the step between 0 and 1")
        self.share = share
        self._usual: list[StepWindow] = []
        self._recent: deque[StepWindow] = deque(maxlen=max(_PATIENCE, _MEMORY_WINDOWS))
        self._windows = 0
        self._memory: NDArray[np.float64] | None = None
        self._settled = False
        self._spread = 0.0
        """Largest deviation that is no drift, as a fraction of the usual step; that of before a drift until others are
        known."""

    def add(self, window: StepWindow) -> list[WatchEvent]:
        """Add a window, and return the events that it confirms."""
        self._windows += 1
        if self._windows == 1:
            return []
        self._recent.append(window)
        if not self._settled:
            self._usual.append(window)
            self._memory = np.array(window.memory_bytes, dtype=np.float64)
            self._settled = len(self._usual) == _BASELINE
            return []
        return [*self._slower(window), *self._larger(window), *self._fallen_links()]

    def _slower(self, window: StepWindow) -> Iterator[WatchEvent]:
        usual = np.array([max(one.step_s) for one in self._usual])
        middle = float(np.median(usual))
        if len(usual) == _BASELINE:
            self._spread = _DEVIATIONS * 1.4826 * float(np.median(np.abs(usual / middle - 1)))
        last = [max(one.step_s) - middle for one in list(self._recent)[-_PATIENCE:]]
        least = max(self.share, self._spread) * middle
        if len(last) == _PATIENCE and (min(last) > least or max(last) < -least):
            yield _event(self._usual, window, middle, max(window.step_s))
            # From here on this is usual, and the next windows like it say how much it varies.
            self._usual = [window]
        elif len(usual) < _BASELINE and abs(last[-1]) <= least:
            self._usual.append(window)

    def _fallen_links(self) -> Iterator[WatchEvent]:
        recent = list(self._recent)[-_PATIENCE:]
        *earlier, window = [{(rank, one.peer): one for rank, one in _fallen(each)} for each in recent]
        for (rank, peer), one in window.items():
            # A rank takes a fallen rate for the usual one after as many windows.
            if len(recent) == _PATIENCE and all((rank, peer) in others for others in earlier):
                words = (
                    f"rank {rank} sends {one.bytes_per_s / 1e6:.3g} MB/s to the host of rank {peer} instead of "
                    f"{one.usual_bytes_per_s / 1e6:.3g} MB/s"
                )
                yield WatchEvent(step=recent[-1].step, cause="network", rank=rank, sentence=words)

    def _larger(self, window: StepWindow) -> Iterator[WatchEvent]:
        assert self._memory is not None
        recent = list(self._recent)[-_MEMORY_WINDOWS:]
        rows = np.array([one.memory_bytes for one in recent], dtype=np.float64)
        rising = (np.diff(rows, axis=0) > 0).all(axis=0) & (len(recent) == _MEMORY_WINDOWS)
        grown = rows[-1] - self._memory
        large = rising & (grown > _MEMORY_BYTES) & (grown > _MEMORY_SHARE * self._memory)
        if large.any():
            rank = int(np.argmax(np.where(large, grown, -1.0)))
            more, whole = grown[rank] / 1e6, rows[-1][rank] / 1e6
            words = f"memory of rank {rank} grows: {more:.0f} MB more than before, {whole:.0f} MB now"
            self._memory = rows[-1]
            yield WatchEvent(step=window.step, cause="memory", rank=rank, sentence=words)


def _fallen(window: StepWindow) -> Iterator[tuple[int, LinkWindow]]:
    """Ranks with a link that fell, and that link."""
    return ((rank, one) for rank, one in enumerate(window.links) if one is not None and one.is_slow)


def _event(usual: list[StepWindow], window: StepWindow, before_s: float, after_s: float) -> WatchEvent:
    share = after_s / before_s - 1
    words = f"a step takes {1e3 * after_s:.3g} ms instead of {1e3 * before_s:.3g} ms ({share:+.0%})"
    if share < 0:
        return WatchEvent(step=window.step, cause="faster", rank=None, sentence=words)
    cause, rank, more_s = _cause(usual, window, after_s - before_s)
    why = {
        "data": f"rank {rank} waits {1e3 * more_s:.3g} ms longer for data",
        "compute": f"rank {rank} computes {1e3 * more_s:.3g} ms longer",
        "network": f"the exchange of gradients takes {1e3 * more_s:.3g} ms longer on all ranks",
    }[cause]
    machine = _machine(usual, window, rank) if cause == "compute" and rank is not None else ""
    return WatchEvent(step=window.step, cause=cause, rank=rank, sentence=f"{words}: {why}{machine}")


def _machine(usual: list[StepWindow], window: StepWindow, rank: int) -> str:
    """Change of a rank's machine that may be why it computes longer; empty if nothing is known of one."""
    before, now = ([_of(one.host_use, rank) for one in rows] for rows in (usual, [window]))
    busy, busy_now = _median(before), _median(now)
    if busy is not None and busy_now is not None and busy_now - busy >= _BUSIER:
        return f"; its host's processors are {busy_now:.0%} busy, {busy:.0%} before"
    before, now = ([_of(one.device_clock_hz, rank) for one in rows] for rows in (usual, [window]))
    clock, clock_now = _median(before), _median(now)
    if clock and clock_now and clock_now < (1 - _SLOWER_CLOCK) * clock:
        return f"; the clock of its GPU is {clock_now / 1e9:.2f} GHz, {clock / 1e9:.2f} before"
    return ""


def _of(values: tuple[float | None, ...], rank: int) -> float | None:
    return values[rank] if rank < len(values) else None


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _cause(usual: list[StepWindow], window: StepWindow, grown_s: float) -> tuple[str, int | None, float]:
    """Part that grew, rank and seconds; the exchange, if no rank's own work grew by half of what the step did.

    Other ranks wait for a late one in the exchange, so what grew on the late rank itself decides.
    """
    own = {
        "data": np.array(window.data_s) - np.median([one.data_s for one in usual], axis=0),
        "compute": window.computed_s - np.median([one.computed_s for one in usual], axis=0),
    }
    name = max(own, key=lambda part: own[part].max())
    rank = int(np.argmax(own[name]))
    if own[name][rank] >= 0.5 * grown_s:
        return name, rank, float(own[name][rank])
    exchange = np.array(window.exchange_s) - np.median([one.exchange_s for one in usual], axis=0)
    return "network", None, float(exchange.mean())


def read_history(path: str | os.PathLike[str]) -> list[StepWindow | WatchEvent]:
    """Read the windows and events of a watched job, in order; a truncated last line is ignored.

    Args:
        path: Folder passed to `watch`, or its file.

    Raises:
        InputError: The file does not exist, or was not written by `watch`.
    """
    file = Path(path) / "watch.jsonl" if Path(path).is_dir() else Path(path)
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except OSError as cause:
        raise InputError(
            f"cannot read {file}: {cause.strerror}; expected the folder that wirewise.watch was given"
        ) from cause
    try:
        return [_LINE.decode(line) for line in lines if line.endswith(b"\n")]
    except msgspec.DecodeError as cause:
        raise InputError(f"{file} is no history of wirewise.watch: {cause}") from cause
