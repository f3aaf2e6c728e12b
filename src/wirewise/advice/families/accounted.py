"""Candidates from device records: the idle or exposed time that a change removes, as kernels cannot be replayed.

Kernels do not record what they wait for. A change is therefore credited with the time of its cause alone; what it
exposes elsewhere is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wirewise.advice.lines import loader_lines, pinned_lines
from wirewise.advice.ranking import Answers
from wirewise.advice.records import FAMILIES, Candidate
from wirewise.sim.bounds import HELPS, shares_of
from wirewise.sim.usage import RankUse

__all__ = ["find_candidates_by_accounting", "shares"]

_NOT_REPLAYED = (
    "kernels do not tell what they wait for, so this is not replayed; a run of `wirewise profile trace` is"
)
_LOADED, _WORKERS = "data that is always ready", 4
"""Change that more workers of the loader make, and how many: that of two processors a device of common hosts."""
_LEAST_SHARE = 0.005
"""Fraction of a step below which its removal is no candidate: the clocks of devices tell less."""


def shares(uses: Sequence[RankUse]) -> dict[str, float]:
    """Fractions of the mean rank's step, by kind of activity."""
    rows = [shares_of(use) for use in uses]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def find_candidates_by_accounting(uses: Sequence[RankUse], step_s: float) -> Answers:
    """Find the candidates of all families from device records.

    Args:
        uses: Device use of each recorded rank; at least one.
        step_s: Seconds of the mean rank's step.
    """
    parts = shares(uses)
    answers: dict[str, list[Candidate] | str] = dict.fromkeys(FAMILIES, _NOT_REPLAYED)
    answers["graph"] = "no exchange of rows of a graph was recorded"
    answers["topology"] = f"links of another cluster: {_NOT_REPLAYED}"
    for family, rows in _removals(parts).items():
        known = [_removal(family, *row, step_s=step_s) for row in rows if row[1] >= _LEAST_SHARE]
        answers[family] = known or f"its cause fills less than {_LEAST_SHARE:.1%} of the step"
    return answers


def _removals(parts: dict[str, float]) -> dict[str, list[tuple[str, float, str, tuple[str, ...]]]]:
    """Name, share of the step that is removed, note and lines of the changes of each family."""
    graphs = ("graph = torch.cuda.make_graphed_callables(model, (sample,))",)
    return {
        "kernels": [
            ("CUDA graphs", parts["host"] + parts["launch"], HELPS["host"], graphs),
            ("torch.compile", parts["launch"], HELPS["launch"], ("model = torch.compile(model)",)),
        ],
        "loader": [
            (_LOADED, parts["data"], HELPS["data"], loader_lines(_WORKERS)),
            ("pinned memory", parts["copies"], HELPS["copies"], pinned_lines()),
        ],
        "links": [("links at 2 times the rate", parts["network"] / 2, HELPS["network"], ())],
        "stragglers": [("no late ranks", parts["imbalance"], HELPS["imbalance"], ())],
    }


def _removal(
    family: str, name: str, share: float, note: str, lines: tuple[str, ...], *, step_s: float
) -> Candidate:
    predicted = step_s * (1.0 - min(share, 1.0))
    return Candidate(
        family=family,
        planner=name,
        predicted_step_s=predicted,
        note=note,
        lines=lines,
        arguments={"num_workers": _WORKERS} if name == _LOADED else {},
        source="accounted",
    )
