"""Trainings that survive failures: consistent updates, the state of a rank and its copy, undone updates."""

from __future__ import annotations

from wirewise.runtime.recovery.optimizers import Lamb, Lion
from wirewise.runtime.recovery.state import Stateful, TrainingState, copy_state
from wirewise.runtime.recovery.undo import Undoable, check_undo

__all__ = ["Lamb", "Lion", "Stateful", "TrainingState", "Undoable", "check_undo", "copy_state"]
