"""Advice on a job: its bottleneck, candidate changes of all families, and their trials inside the job's own script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names

if TYPE_CHECKING:
    from wirewise.advice.comparing import RunComparison, compare
    from wirewise.advice.reading import advise
    from wirewise.advice.records import BOUNDS, FAMILIES, LEAST_GAIN, Advice, Candidate

__all__ = ["BOUNDS", "FAMILIES", "LEAST_GAIN", "Advice", "Candidate", "RunComparison", "advise", "compare"]

# The names need the simulator, which takes a moment to import.
__getattr__ = lazy_names(
    __name__,
    {
        "comparing": ("RunComparison", "compare"),
        "reading": ("advise",),
        "records": ("BOUNDS", "FAMILIES", "LEAST_GAIN", "Advice", "Candidate"),
    },
)
