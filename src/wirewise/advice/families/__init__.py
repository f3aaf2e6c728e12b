"""Candidate changes of each family, from a run that can be replayed or from device records alone."""

from __future__ import annotations

from wirewise.advice.families.accounted import find_candidates_by_accounting
from wirewise.advice.families.replayed import ReplayedJob, find_candidates_by_replay

__all__ = ["ReplayedJob", "find_candidates_by_accounting", "find_candidates_by_replay"]
