"""What trainings whose ranks are killed report."""

from __future__ import annotations

import msgspec

__all__ = [
    "FinalState",
    "RecoveryRecord",
    "RecoveryRun",
    "SurvivalRecord",
]


class RecoveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, from the instant of the signal to the first step that had not been committed before."""

    rank: int
    at_s: float
    """Seconds after the first step of the training."""
    strategy: str
    """Where the lost state came from: "replica", "log", "snapshot" in the memory of the host, or "checkpoint"."""
    detect_s: float
    """Seconds until the agent of the failed rank knew of it."""
    fence_s: float
    """Seconds more until no process of the old generation could act any more."""
    regroup_s: float
    """Seconds more until the new process group stood."""
    restore_s: float
    """Seconds more until every rank had the state of the step that was agreed on."""
    recompute_s: float = 0.0
    """Seconds more in which a new process computed logged steps again."""
    resume_s: float
    """Seconds more until the first new step was committed."""
    lost_iterations: int
    """Number of committed steps that were lost and computed again by all ranks."""
    replayed_iterations: int
    """Number of steps that the new process alone computed again from logs."""
    bit_equal: bool | None
    """Whether the state at the end of the training is that of an undisturbed one, bit for bit; None: not compared."""
    predicted_s: dict[str, float] = {}
    """Seconds that were predicted of each phase, by its name without the unit."""

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of each phase in the order in which they follow each other."""
        names = ("detect", "fence", "regroup", "restore", "recompute", "resume")
        return {name: getattr(self, f"{name}_s") for name in names}

    @property
    def recovered_s(self) -> float:
        """Seconds from the signal to the first new step."""
        return sum(self.phases_s.values())


class SurvivalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A way to survive failures, as one training with kills took it."""

    meaning: str
    kills: int
    spared: int
    """Number of kills that the training ended before."""
    step_s: float
    """Median seconds of a step before the first kill."""
    resumed_s: tuple[float, ...]
    """Seconds from each kill to the next step of the process in its place, whichever step that was."""
    recovered_s: tuple[float, ...]
    """Seconds from each kill to the first step that had not been committed before."""
    repeated: int
    """Number of committed steps that were computed again, over all kills."""
    steps: int
    """Number of steps that were committed in the end."""
    seconds: float
    """Seconds from the first to the last step."""
    goodput: float
    """Share of the time that an unprotected training without failures needs for the same steps."""
    bit_equal: bool | None
    """Whether the final state is that of an undisturbed training; None: not compared."""


class RecoveryRun(msgspec.Struct, frozen=True, kw_only=True):
    """A training under failures, next to other ways to survive them."""

    job: str
    hosts: int
    link: str
    optimizer: str
    consistency: str
    strategy: str
    """"auto", or the only way of recovery that was allowed."""
    state_bytes: int
    """Bytes of parameters and optimizer of a rank."""
    kills: int
    recoveries: tuple[RecoveryRecord, ...]
    bit_equal: bool
    """Whether the final state is that of an undisturbed training, bit for bit, on all ranks."""
    step_s: float
    """Median seconds of a protected step without failures."""
    unprotected_step_s: float
    """Median seconds of a step of the unmodified script without failures and checkpoints."""
    overhead: float
    """Protected over unprotected step without failures, less 1."""
    goodput: float
    baseline_goodput: float | None
    """Goodput of the unmodified script with checkpoints, restarted by torchrun; None: not trained."""
    baseline: str
    """How often the baseline writes checkpoints, in words."""
    speedup: float | None
    """Median seconds until the baseline takes a step again, over those until the protected training has a new one."""
    ways: dict[str, SurvivalRecord]
    """The protected training first."""


class FinalState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank holds after the last step."""

    digest: str
    """Digest of parameters and optimizer."""
    bytes: int
    """Bytes of both."""
