"""Spacing of the checks of an unchanged training, so that they stay below one percent of its time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["FARTHEST", "FARTHEST_LOOK", "FIRST", "CheckBudget", "Interval"]

FIRST = 32
"""Steps after the start, and after each change, in which everything is checked."""
FARTHEST = 16
"""Longest distance of full checks, in steps: the bound on how late a change without visible signs is noticed."""
FARTHEST_LOOK = 8
"""Longest distance of brief checks, in steps: the bound on how late another loss or attribute is noticed."""
_GOLDEN = 0.381966
"""Steps by which mean distances are below whole ones: irrational, so that looks meet each step of any period."""
_FRACTION = 0.003
"""Fraction of a step that full checks may take; proofs take as much, brief looks and what each step does the rest of
one percent: measured at 1,000 nodes and a width of 128."""
_GROWTH = 4
"""Factor up to which distances of proofs grow: one takes 11 ms where a step of 1,000 nodes takes 8."""
_MEMORY = 0.8
"""Weight of earlier steps in the averages: a hiccup of the machine is forgotten after some ten steps."""


class CheckBudget:
    """Scheduler of full checks, by their measured cost.

    Ranks agree on the smallest spacing, so that all check in the same steps. Costs are CPU time: waiting for other
    ranks does not count as time for checks.
    """

    def __init__(self) -> None:
        self.step = self.quiet = 0
        self.spacing = 1
        """Distance of full checks in steps, agreed by all ranks."""
        self.distance = 1
        """Distance of brief checks, in steps."""
        self.due = self.looks = True
        """A full check, or at least a brief one, is due in this step; the same on all ranks, as steps and spacing are.
        Decided once a step: each step asks eight times."""
        self._cost_s = self._step_s = self._spent_s = 0.0
        self._last_s = time.process_time()

    @property
    def is_settling(self) -> bool:
        """Whether the first steps after the start or a change are in progress, in which everything is checked."""
        return self.quiet < FIRST

    @property
    def turn(self) -> int:
        """Number of brief checks so far at the current spacing."""
        return int(self.step * _frequency(self.distance))

    def restart(self) -> None:
        """Check fully for some steps, after a change."""
        self.quiet, self.due = 0, True

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Measure the time of a part of the full checks."""
        start = time.process_time()
        try:
            yield
        finally:
            self._spent_s += time.process_time() - start

    @contextmanager
    def exclude(self) -> Iterator[None]:
        """Leave the time of a proof out: it belongs neither to the step nor to the full checks."""
        start = time.process_time()
        try:
            yield
        finally:
            self._last_s += time.process_time() - start

    def wanted(self) -> int:
        """Spacing that keeps full checks within their fraction of a step, in steps."""
        if self.quiet < FIRST or not self._step_s:
            return 1
        return min(FARTHEST, max(1, math.ceil(self._cost_s / (_FRACTION * self._step_s))))

    def advance(self, spacing: int) -> None:
        """End a step, with the spacing agreed on by all ranks."""
        now = time.process_time()
        if self.due:
            self._cost_s = _average(self._cost_s, self._spent_s)
        self._step_s = _average(self._step_s, now - self._last_s - self._spent_s)
        self._last_s, self._spent_s, self.spacing = now, 0.0, spacing
        self.distance = min(FARTHEST_LOOK, max(1, spacing // 2))
        self.step += 1
        self.quiet += 1
        self.due = self.quiet < FIRST or _is_met(self.step, spacing)
        self.looks = _is_met(self.step, self.distance)


def _frequency(distance: int) -> float:
    return 1.0 if distance == 1 else 1.0 / (distance - _GOLDEN)


def _is_met(step: int, distance: int) -> bool:
    """Whether a step is among those that are `distance` apart, or one less."""
    frequency = _frequency(distance)
    return frequency == 1.0 or step * frequency % 1.0 < frequency


def _average(before: float, value: float) -> float:
    return _MEMORY * before + (1 - _MEMORY) * value if before else value


class Interval:
    """Growing intervals, in calls, between repeated proofs of an unchanged model.

    Args:
        every: Calls between the first two proofs.
        grows: Double the interval after each undisturbed proof, up to four times the first.
    """

    def __init__(self, every: int, *, grows: bool = False) -> None:
        self._every, self._longest = every, every * (_GROWTH if grows else 1)
        self._distance, self._next = every, every

    def due(self, call: int, *, force: bool = False) -> bool:
        """Whether a proof is due at a call; `force` forces one, which resets the interval to its first length."""
        if not force and call < self._next:
            return False
        self._distance = self._every if force else min(2 * self._distance, self._longest)
        self._next = call + self._distance
        return True
