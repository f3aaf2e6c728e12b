"""Trainings that survive failures: consistent updates, the state of a rank and its copy, undone updates."""

from __future__ import annotations

from wirewise.runtime.recovery.logs import LoggedMessages, MessageKey, MessageLog
from wirewise.runtime.recovery.optimizers import Lamb, Lion
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.recovery.state import Stateful, TrainingState, copy_state
from wirewise.runtime.recovery.undo import Undoable, check_undo

__all__ = [
    "Lamb",
    "Lion",
    "LoggedMessages",
    "MessageKey",
    "MessageLog",
    "RecoveryJournal",
    "Stateful",
    "TrainingState",
    "Undoable",
    "check_undo",
    "copy_state",
]
