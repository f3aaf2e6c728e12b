"""Compare two recorded runs of one job: which parts of a step got slower, beyond noise."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.intervals import ratio95
from wirewise.errors import InputError
from wirewise.report.figures import seconds, signed
from wirewise.sim.phases import collective_seconds, phase_seconds, step_seconds
from wirewise.trace.records import Trace
from wirewise.trace.sources import open_trace

__all__ = ["Change95", "RunComparison", "compare"]

Times = NDArray[np.float64]

_LEAST_STEPS = 4
"""Fewer steps of a run give no interval of their median."""
_LEAST_S = 1e-5
"""Differences below it are within the clock's resolution, in seconds."""


class Change95(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one part of a step in runs A and B, with the 95 % interval of the change."""

    kind: str
    """ "step", "phase", "collective" or "rank" (a rank's whole compute)."""
    name: str
    a_s: float
    """Median of run A."""
    b_s: float
    """Median of run B."""
    ci95: tuple[float, float] | None
    """95 % interval of the relative increase from A to B. None if A lacks the part."""
    rank: int | None = None
    """Rank on which a phase grew most. None if the part covers all ranks."""

    @property
    def share(self) -> float | None:
        """Relative change from A to B, (B - A) / A. None if A does not have the part."""
        return self.b_s / self.a_s - 1.0 if self.a_s > 0 else None

    @property
    def slower(self) -> bool:
        """Whether the part is slower in B, beyond noise."""
        return (self.ci95 is None or self.ci95[0] > 0) and self.b_s - self.a_s > _LEAST_S

    @property
    def faster(self) -> bool:
        """Whether the part is faster in B, beyond noise."""
        return self.ci95 is not None and self.ci95[1] < 0 and self.a_s - self.b_s > _LEAST_S


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Changes from run A to run B."""

    sentence: str
    step: Change95
    changes: tuple[Change95, ...]
    """All parts of a step, by growth in seconds, largest first."""
    steps: tuple[int, int]
    """Recorded steps of each run."""

    def exceeds(self, limit: float) -> bool:
        """Whether the step got slower by more than the fraction `limit`, beyond noise."""
        return self.step.slower and (self.step.share or 0.0) > limit


class _Run(NamedTuple):
    """Figures of a run that are compared."""

    trace: Trace
    step: Times
    phases: Mapping[str, Times]
    collectives: Mapping[str, Times]


def compare(run_a: str | os.PathLike[str], run_b: str | os.PathLike[str]) -> RunComparison:
    """Compare two recorded runs of the same job on the same number of ranks.

    Medians over steps are compared, with intervals by bootstrap over the steps of both. Parts are phases of the
    script's thread, collectives by name (without the wait for stragglers), and the compute of each rank.

    Args:
        run_a: Run folder or trace file of the baseline.
        run_b: Run folder or trace file that is compared with it.

    Raises:
        InputError: The runs differ in the number of ranks, or one has fewer than four steps.
        TraceError: Raised by `trace.open_trace`.
    """
    a, b = _read(run_a), _read(run_b)
    if len(a.step) != len(b.step):
        raise InputError(
            f"{os.fspath(run_a)} has {len(a.step)} ranks and {os.fspath(run_b)} {len(b.step)}; expected two runs of "
            "one job on as many ranks"
        )
    step = _change("step", "step", a.step.mean(axis=0), b.step.mean(axis=0))
    rows = [*_phases(a, b), *_collectives(a, b), *_ranks(a, b)]
    rows.sort(key=lambda row: row.a_s - row.b_s)
    return RunComparison(
        sentence=_sentence(step, rows),
        step=step,
        changes=tuple(rows),
        steps=(a.step.shape[1], b.step.shape[1]),
    )


def _read(run: str | os.PathLike[str]) -> _Run:
    trace = open_trace([run], partial=True)
    step = step_seconds(trace)
    if step.shape[1] < _LEAST_STEPS:
        raise InputError(
            f"{os.fspath(run)} has {step.shape[1]} steps that all ranks have; expected at least {_LEAST_STEPS}: record "
            "longer"
        )
    return _Run(trace, step, phase_seconds(trace), collective_seconds(trace))


def _change(kind: str, name: str, a: Times, b: Times, rank: int | None = None) -> Change95:
    if not (a > 0).any():
        return Change95(kind=kind, name=name, a_s=0.0, b_s=float(np.median(b)), ci95=None, rank=rank)
    low, high = ratio95(b, np.maximum(a, 1e-9))
    medians = float(np.median(a)), float(np.median(b))
    return Change95(kind=kind, name=name, a_s=medians[0], b_s=medians[1], ci95=(low - 1, high - 1), rank=rank)


def _phases(a: _Run, b: _Run) -> Iterator[Change95]:
    """Phases of the mean rank, with the rank that grew most."""
    for phase in {**a.phases, **b.phases}:
        before = a.phases.get(phase, np.zeros_like(a.step))
        after = b.phases.get(phase, np.zeros_like(b.step))
        grown = np.median(after, axis=1) - np.median(before, axis=1)
        rank = b.trace.ranks[int(np.argmax(grown))].header.rank
        yield _change("phase", phase, before.mean(axis=0), after.mean(axis=0), rank)


def _collectives(a: _Run, b: _Run) -> Iterator[Change95]:
    for name in a.collectives:
        own = a.collectives[name], b.collectives.get(name, np.zeros(0))
        if min(map(len, own)) >= _LEAST_STEPS:
            yield _change("collective", name, *own)


def _ranks(a: _Run, b: _Run) -> Iterator[Change95]:
    """Compute time of each rank, where there are several."""
    for row, recorded in enumerate(b.trace.ranks if len(b.step) > 1 else ()):
        rank = recorded.header.rank
        yield _change("rank", f"rank {rank}", _computed(a, row), _computed(b, row), rank)


def _computed(run: _Run, row: int) -> Times:
    """Seconds of each step in which a rank neither waits nor loads."""
    found = np.zeros(run.step.shape[1])
    for name, times in run.phases.items():
        found += times[row] if name not in ("wait", "data") else 0.0
    return found


def _sentence(step: Change95, rows: list[Change95]) -> str:
    figures = f"{seconds(step.b_s)} instead of {seconds(step.a_s)} ({_longer(step)})"
    if step.faster:
        return f"A step got faster: {figures}."
    if not step.slower:
        return f"A step takes as long as before, as far as noise tells: {figures}."
    return f"A step got slower: {figures}. {_where(rows)}"


def _longer(row: Change95) -> str:
    if row.share is None or row.ci95 is None:
        return "new"
    return f"{signed(row.share)}, 95 %: {' to '.join(map(signed, row.ci95))}"


def _where(rows: list[Change95]) -> str:
    """The phase that grew most with its rank, and where it is waiting, the collective or the late rank behind it."""
    slower = [row for row in rows if row.slower]
    phase = next((row for row in slower if row.kind == "phase"), None)
    if phase is None:
        return "No part of it grew beyond noise by itself."
    grown = f"The phase {phase.name} grew by {seconds(phase.b_s - phase.a_s)}, most on rank {phase.rank}"
    collective = next((row for row in slower if row.kind == "collective"), None)
    rank = next((row for row in slower if row.kind == "rank"), None)
    if phase.name == "wait" and collective is not None:
        return f"{grown}; of the collectives {collective.name} grew most ({_longer(collective)})."
    if phase.name != "data" and rank is not None:
        return f"{grown}; {rank.name} computes longer ({_longer(rank)})."
    return f"{grown}."
