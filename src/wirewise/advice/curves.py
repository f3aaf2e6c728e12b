"""Step time against link bandwidth and number of ranks, for a replayed job and for its best change of the script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from wirewise.advice.families import ReplayedJob
from wirewise.advice.records import Candidate, StepCurve
from wirewise.errors import InputError
from wirewise.sim.whatif import Change, parse

__all__ = ["break_even", "step_curves"]

_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of the rate of links and of the number of ranks, of which whole numbers are replayed."""


def step_curves(job: ReplayedJob, candidates: Sequence[Candidate]) -> tuple[StepCurve, ...]:
    """Replay the job, and its best change of script lines, at several link bandwidths and numbers of ranks.

    Args:
        job: Replayed job, from which the changes of the candidates are looked up.
        candidates: Candidates of all families, in any order.
    """
    known = [one for one in candidates if one.lines and (one.family, one.planner) in job.changes]
    best = max(known, key=lambda one: one.gain(job.step_s), default=None)
    if best is not None and best.gain(job.step_s) <= 0:
        best = None
    curves = []
    if job.recording.links.hosts > 1:
        rates = [f"bandwidth=*:x{factor:g}" if factor != 1 else "" for factor in _FACTORS]
        curves.append(_curve(job, best, "rate of links", _FACTORS, rates))
    if job.ranks > 1:
        numbers = [
            factor * job.ranks for factor in _FACTORS if factor * job.ranks in range(1, 4 * job.ranks + 1)
        ]
        texts = [f"ranks={ranks:g}" if ranks != job.ranks else "" for ranks in numbers]
        curves.append(_curve(job, best, "ranks", numbers, texts))
    return tuple(curve for curve in curves if sum(value is not None for value in curve.as_it_is_s) > 1)


def _curve(
    job: ReplayedJob, best: Candidate | None, over: str, values: Sequence[float], texts: Sequence[str]
) -> StepCurve:
    as_it_is = tuple(_step_s(job, text, ()) for text in texts)
    if best is None:
        return StepCurve(over=over, values=tuple(values), as_it_is_s=as_it_is)
    changes = job.changes[best.family, best.planner]
    changed = tuple(
        None if value is None else value / best.work
        for value in (_step_s(job, text, changes) for text in texts)
    )
    return StepCurve(
        over=over,
        values=tuple(values),
        as_it_is_s=as_it_is,
        change=f"{best.family}: {best.planner}",
        changed_s=changed,
        break_even=break_even(values, as_it_is, changed),
    )


def _step_s(job: ReplayedJob, text: str, changes: Sequence[Change]) -> float | None:
    """Seconds of a step at a value. None if the job cannot be replayed at it."""
    try:
        found = job.predict([*changes, *parse(text)] if changes or not text else text)
    except InputError:
        return None
    return found.predicted_step_s * job.scale


def break_even(
    values: Sequence[float], as_it_is_s: Sequence[float | None], changed_s: Sequence[float | None]
) -> float | None:
    """Find where the changed step takes as long as the baseline step, interpolated on a logarithmic scale.

    Args:
        values: Values of the x axis, ascending.
        as_it_is_s: Seconds of the baseline step at each value; None if unknown.
        changed_s: Seconds of the changed step at each value; None if unknown.

    Returns:
        None if one of them is faster at all values.
    """
    saved = [
        (value, own - changed)
        for value, own, changed in zip(values, as_it_is_s, changed_s, strict=True)
        if own is not None and changed is not None
    ]
    for (low, before), (high, after) in pairwise(saved):
        if before * after < 0:
            share = before / (before - after)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None
