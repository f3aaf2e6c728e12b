"""Survive failures: what ranks do when one of them dies, from its detection to the next committed step."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "consistency": ("Updates",),
    "journals": ("Consistency",),
    "logs": ("LoggedMessages", "MessageKey", "MessageLog"),
    "optimizers": ("Lamb", "Lion"),
    "recompute": ("RecoveryJournal",),
    "state": ("Stateful", "TrainingState", "copy_state"),
    "undo": ("Undoable", "check_undo"),
}
"""Names by module, imported when asked for."""

__all__ = [
    "Consistency",
    "Lamb",
    "Lion",
    "LoggedMessages",
    "MessageKey",
    "MessageLog",
    "RecoveryJournal",
    "Stateful",
    "TrainingState",
    "Undoable",
    "Updates",
    "check_undo",
    "copy_state",
]


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
