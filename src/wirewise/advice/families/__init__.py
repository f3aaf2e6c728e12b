"""Candidate changes of each family, from a run that can be replayed or from device records alone."""

from __future__ import annotations

from wirewise.advice.families.accounted import answer_by_accounting
from wirewise.advice.families.replayed import ReplayedJob, answer_by_replay

__all__ = ["ReplayedJob", "answer_by_accounting", "answer_by_replay"]
