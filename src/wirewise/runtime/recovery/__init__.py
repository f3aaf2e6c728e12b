"""Fault-tolerant training: failure detection, a decision common to all ranks, consistent updates, and state copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names

if TYPE_CHECKING:
    from wirewise.runtime.points import notify_point
    from wirewise.runtime.recovery.agent import Agent, Recoveries, RecoveryTimes, run_script
    from wirewise.runtime.recovery.arguments import Checkpoints, Ranks, State
    from wirewise.runtime.recovery.checkpoints import CheckpointFolder
    from wirewise.runtime.recovery.consistency import Updates
    from wirewise.runtime.recovery.decision import RankRecord, RecoveryAction, RecoveryDecision, decide
    from wirewise.runtime.recovery.epochs import train_epochs
    from wirewise.runtime.recovery.helping import HelperOptions, recompute_together
    from wirewise.runtime.recovery.journals import Consistency
    from wirewise.runtime.recovery.logs import LoggedMessages, MessageKey, SenderLog
    from wirewise.runtime.recovery.membership import Member, join
    from wirewise.runtime.recovery.optimizers import Lamb, Lion
    from wirewise.runtime.recovery.pipelines import Membership, train_through_faults
    from wirewise.runtime.recovery.planned import RecoverySettings, settings_of
    from wirewise.runtime.recovery.protection import protect
    from wirewise.runtime.recovery.recompute import RecoveryJournal
    from wirewise.runtime.recovery.session import Training
    from wirewise.runtime.recovery.snapshots import Snapshots
    from wirewise.runtime.recovery.state import Stateful, TrainingState, copy_state
    from wirewise.runtime.recovery.sync import DDP, Backward, Buckets, Fold, Shards
    from wirewise.runtime.recovery.undo import InvertibleOptimizer, check_undo

"""Names by module, imported when asked for: a decision needs no torch."""

__all__ = [
    "DDP",
    "Agent",
    "Backward",
    "Buckets",
    "CheckpointFolder",
    "Checkpoints",
    "Consistency",
    "Fold",
    "HelperOptions",
    "InvertibleOptimizer",
    "Lamb",
    "Lion",
    "LoggedMessages",
    "Member",
    "Membership",
    "MessageKey",
    "RankRecord",
    "Ranks",
    "Recoveries",
    "RecoveryAction",
    "RecoveryDecision",
    "RecoveryJournal",
    "RecoverySettings",
    "RecoveryTimes",
    "SenderLog",
    "Shards",
    "Snapshots",
    "State",
    "Stateful",
    "Training",
    "TrainingState",
    "Updates",
    "check_undo",
    "copy_state",
    "decide",
    "join",
    "notify_point",
    "protect",
    "recompute_together",
    "run_script",
    "settings_of",
    "train_epochs",
    "train_through_faults",
]

# A spare that waits for a role needs a fraction of it.
__getattr__ = lazy_names(
    __name__,
    {
        "agent": (
            "Agent",
            "Recoveries",
            "RecoveryTimes",
            "run_script",
        ),
        "arguments": (
            "Checkpoints",
            "Ranks",
            "State",
        ),
        "checkpoints": ("CheckpointFolder",),
        "consistency": ("Updates",),
        "decision": (
            "RecoveryAction",
            "RecoveryDecision",
            "RankRecord",
            "decide",
        ),
        "epochs": ("train_epochs",),
        "helping": (
            "HelperOptions",
            "recompute_together",
        ),
        "journals": ("Consistency",),
        "logs": (
            "LoggedMessages",
            "MessageKey",
            "SenderLog",
        ),
        "membership": (
            "Member",
            "join",
        ),
        "optimizers": (
            "Lamb",
            "Lion",
        ),
        "pipelines": (
            "Membership",
            "train_through_faults",
        ),
        "planned": (
            "RecoverySettings",
            "settings_of",
        ),
        ".points": ("notify_point",),
        "recompute": ("RecoveryJournal",),
        "protection": ("protect",),
        "session": ("Training",),
        "snapshots": ("Snapshots",),
        "state": (
            "Stateful",
            "TrainingState",
            "copy_state",
        ),
        "sync": (
            "Backward",
            "Buckets",
            "DDP",
            "Fold",
            "Shards",
        ),
        "undo": (
            "InvertibleOptimizer",
            "check_undo",
        ),
    },
)
