"""Records of trainings whose ranks are killed."""

from __future__ import annotations

import msgspec

from wirewise.results import RecoveryRecord

__all__ = ["FinalState", "RecoveryRun", "SurvivalRecord"]


class FinalState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a rank after the last step."""

    digest: str
    """Digest of parameters and optimizer."""
    bytes: int
    """Bytes of both."""


class SurvivalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Training under kills with one recovery method."""

    meaning: str
    kills: int
    spared: int
    """Number of kills that were due only after the end of the training."""
    step_s: float
    """Median seconds of a step before the first kill."""
    resumed_s: tuple[float, ...]
    """Seconds from each kill to the next step of the replacement process, new or repeated."""
    recovered_s: tuple[float, ...]
    """Seconds from each kill to the first new step."""
    repeated: int
    """Number of committed steps that were recomputed, over all kills."""
    steps: int
    """Number of committed steps at the end."""
    seconds: float
    """Seconds from the first to the last step."""
    goodput: float
    """Fraction of the time that an unprotected training without failures needs for the same steps."""
    bit_equal: bool | None
    """Whether the final state equals that of a failure-free training. None if not compared."""


class RecoveryRun(msgspec.Struct, frozen=True, kw_only=True):
    """Training under failures with several recovery methods."""

    job: str
    hosts: int
    link: str
    optimizer: str
    consistency: str
    strategy: str
    """"auto", or the only recovery strategy that was allowed."""
    state_bytes: int
    """Bytes of parameters and optimizer of a rank."""
    kills: int
    recoveries: tuple[RecoveryRecord, ...]
    bit_equal: bool
    """Whether the final state equals that of a failure-free training bit for bit, on all ranks."""
    step_s: float
    """Median seconds of a protected step without failures."""
    unprotected_step_s: float
    """Median seconds of a step of the unmodified script without failures and checkpoints."""
    overhead: float
    """Failure-free overhead: protected over unprotected step, minus 1."""
    goodput: float
    baseline_goodput: float | None
    """Goodput of the unmodified script with checkpoints, restarted by torchrun; None if not trained."""
    baseline: str
    """Description of the baseline's checkpoint interval."""
    speedup: float | None
    """Median seconds until the baseline takes a step again, over those until the protected training has a new one."""
    ways: dict[str, SurvivalRecord]
    """Recovery methods; the protected training is the first."""
