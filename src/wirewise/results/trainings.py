"""Records of trainings."""

from __future__ import annotations

import msgspec

__all__ = ["EpochRecord", "IncrementalRecord", "MeasuredPass", "RecoveryRecord"]


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Training epoch of one mode, over all ranks."""

    epoch: int
    loss: float
    """Mean training loss over the global training nodes."""
    train_s: float
    """Wall-clock time of the epoch on the slowest rank, with re-planning, without evaluation."""
    eval_s: float = 0.0
    """Wall-clock time of the evaluation after this epoch, in seconds; 0 if there was none."""
    phases: dict[str, float] = {}
    """Seconds in each phase, mean over ranks: pack, wire, unpack, central, marginal, reduce, plan, other."""
    bytes_sent: int = 0
    """Payload bytes of halo messages that all ranks sent in the epoch."""
    bits: dict[str, dict[int, int]] = {}
    """Messages by bit width for each exchange: {"forward1": {2: 812, 8: 3071}}."""
    accuracy: dict[str, float] = {}
    """Accuracy (or micro-F1) by split, "train", "validation", "test"; empty when not evaluated."""


class IncrementalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an incremental learning method on a growing graph; accuracies are means over a task's classes."""

    ap: float
    """Mean accuracy over all tasks after the last one."""
    af: float
    """Mean change of each task's accuracy since it was learnt; negative means forgetting."""
    ap_by_task: tuple[float, ...]
    """AP after each task, over the tasks so far."""
    af_by_task: tuple[float, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """Accuracies of tasks 0 to t after task t is learnt."""
    seconds: float
    """Seconds of learning and evaluation."""


class MeasuredPass(msgspec.Struct, frozen=True, array_like=True):
    """Executed pass of a stage over a microbatch."""

    kind: str
    """F: forward; B: backward; I and W: backward for inputs and for weights."""
    stage: int
    update: int
    """Index of the update within a turn."""
    microbatch: int
    start_s: float
    """Seconds since the first pass of the turn."""
    end_s: float


class RecoveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Failure and recovery, from the signal to the first step not committed before."""

    rank: int
    at_s: float
    """Seconds since the first step of the training."""
    strategy: str
    """Source of the lost state: "replica", "log", "snapshot" in the memory of the host, or "checkpoint"."""
    detect_s: float
    """Seconds until the agent of the failed rank detected it."""
    fence_s: float
    """Further seconds until all processes of the old generation were fenced."""
    regroup_s: float
    """Further seconds until the new process group was up."""
    restore_s: float
    """Further seconds until every rank had the state of the agreed step."""
    recompute_s: float = 0.0
    """Further seconds in which a new process recomputed logged steps."""
    resume_s: float
    """Further seconds until the first new step was committed."""
    lost_iterations: int
    """Number of committed steps that were lost and recomputed by all ranks."""
    replayed_iterations: int
    """Number of steps that only the new process recomputed, from logs."""
    bit_equal: bool | None
    """Whether the final state equals that of a failure-free training bit for bit. None if not compared."""
    predicted_s: dict[str, float] = {}
    """Predicted seconds of each phase, by its name without the unit."""

    @property
    def phases_s(self) -> dict[str, float]:
        """Duration of each recovery phase, in order, in seconds."""
        names = ("detect", "fence", "regroup", "restore", "recompute", "resume")
        return {name: getattr(self, f"{name}_s") for name in names}

    @property
    def recovered_s(self) -> float:
        """Recovery time: seconds from the signal to the first new step."""
        return sum(self.phases_s.values())
