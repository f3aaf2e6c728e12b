"""Recovery traces: compute time, state and messages of stages in a step, and times of recovery phases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import isfinite

import msgspec

from wirewise.errors import InputError
from wirewise.trace.record_files import amount_faults, read_record, write_record

__all__ = [
    "ProtectedStage",
    "RecoveryTrace",
    "StageMessages",
    "read_recovery_trace",
    "write_recovery_trace",
]


class ProtectedStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pipeline stage: part of the model on one rank, or on several replicas."""

    ranks: tuple[int, ...]
    """Ranks of the stage, one per replica."""
    compute_s: float
    """Seconds of all forward and backward passes of a step on one replica."""
    optimizer_s: float = 0.0
    """Seconds of the update of the parameters."""
    state_bytes: float = 0.0
    """Bytes of the complete state that a recovered rank needs: parameters, optimizer state, ..."""
    gradient_bytes: float = 0.0
    """Bytes of the gradients, which recomputation helpers send."""
    failure_weight: float = 1.0
    """Relative failure rate of each of its ranks."""


class StageMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages from one stage to another in a step: activations, gradients or halo rows."""

    source: int
    """Index of the sending stage."""
    target: int
    """Index of the receiving stage."""
    size_bytes: float
    """Bytes on the wire per step, of one replica."""


class RecoveryTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Job for recovery planning; defaults were measured on two shared cores with gloo over loopback.

    Raises:
        InputError: A value is invalid; the message names the place.
    """

    stages: tuple[ProtectedStage, ...]
    """Stages in the order of the forward pass; a data-parallel job has one, a partitioned graph one for each part."""
    messages: tuple[StageMessages, ...] = ()
    """Messages that stages send to each other."""
    step_s: float
    """Seconds of a step without any protection."""
    microbatches: int = 1
    """Microbatches of a step, of one replica."""
    concurrent: bool = False
    """Whether stages compute at the same time, as parts of a graph do; those of a pipeline wait for each other."""
    detect_s: float = 0.05
    """Seconds to detect a killed process."""
    silent_share: float = 0.0
    """Fraction of failures that leave a process hung, detected only after the silence limit."""
    fence_s: float = 0.005
    """Seconds to fence a process that counts as dead."""
    regroup_s: float = 0.04
    """Seconds to leave the old process group and join the new one."""
    resume_s: float = 0.02
    """Seconds from restored state to the first new step."""
    spawn_s: float = 5.4
    """Seconds until a new process is a warm spare."""
    restart_s: float = 6.0
    """Seconds that a launcher takes to stop all processes and start them again."""
    checkpoint_s: float = 0.0
    """Seconds for which training stops at a checkpoint, whose write overlaps. Defaults to the time to copy the
    state."""
    checkpoint_bytes_per_s: float = 0.7e9
    """Rate at which a process writes its state to durable storage."""
    load_bytes_per_s: float = 1.5e9
    """Rate at which a process reads its state from durable storage."""
    memory_log_bytes_per_s: float = 2.3e9
    """Rate at which logs in shared memory are written and read."""
    disk_log_bytes_per_s: float = 1.5e9
    """Rate at which logs on disk are written and read."""
    consistency_s: dict[str, float] = {}
    """Overhead per step of each consistency method, in seconds; rolling forward has none."""
    model: str = ""
    """Name of the model."""

    def __post_init__(self) -> None:
        for fault in (*self._stage_faults(), *self._message_faults(), *self._value_faults()):
            raise InputError(fault)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(len(stage.ranks) for stage in self.stages)

    @property
    def failure_shares(self) -> tuple[float, ...]:
        """Probability of a failure in each stage, given a failure, [stages]."""
        weights = [stage.failure_weight * len(stage.ranks) for stage in self.stages]
        return tuple(weight / sum(weights) for weight in weights)

    def _stage_faults(self) -> Iterator[str]:
        if not self.stages:
            yield "there are no stages - at `$.stages`; expected at least one"
        ranks = sorted(rank for stage in self.stages for rank in stage.ranks)
        if ranks != list(range(len(ranks))):
            yield f"stages have the ranks {ranks[:16]} - at `$.stages`; expected each from 0 on once"
        for number, stage in enumerate(self.stages):
            where = f"stage {number} - at `$.stages[{number}]`"
            if not stage.ranks:
                yield f"{where}: has no ranks; expected one for each replica"
            for name in ("compute_s", "optimizer_s", "state_bytes", "gradient_bytes", "failure_weight"):
                yield from amount_faults(f"{where}: {name}", getattr(stage, name))
        if self.stages and not any(stage.failure_weight for stage in self.stages):
            yield "every failure_weight is 0 - at `$.stages`; expected one above 0"

    def _message_faults(self) -> Iterator[str]:
        pairs = [(one.source, one.target) for one in self.messages]
        for number, (one, pair) in enumerate(zip(self.messages, pairs, strict=True)):
            where = f"messages {one.source} -> {one.target} - at `$.messages[{number}]`"
            if one.source == one.target or not {*pair} <= {*range(len(self.stages))}:
                yield f"{where}: expected two of stages 0 to {len(self.stages) - 1}"
            if pair in pairs[:number]:
                yield f"{where}: stand twice; expected each pair of stages once"
            yield from amount_faults(f"{where}: size_bytes", one.size_bytes)

    def _value_faults(self) -> Iterator[str]:
        for field in msgspec.structs.fields(RecoveryTrace):
            value, place = getattr(self, field.name), f"{field.name} - at `$.{field.name}`"
            if field.name.endswith("_per_s") or field.name in ("step_s", "microbatches"):
                if not isfinite(value) or value <= 0:
                    yield f"{place} is {value}; expected a finite figure above 0"
            elif isinstance(value, float):
                yield from amount_faults(place, value)
        if self.silent_share > 1:
            yield f"silent_share - at `$.silent_share` is {self.silent_share}; expected at most 1"
        for name, seconds in self.consistency_s.items():
            yield from amount_faults(f"seconds of {name!r} - at `$.consistency_s`", seconds)


def read_recovery_trace(path: str | os.PathLike[str]) -> RecoveryTrace:
    """Read a JSON file whose keys are the fields of `RecoveryTrace`.

    Raises:
        InputError: The file cannot be read or is malformed; the message names the file and the place.
    """
    return read_record(path, RecoveryTrace, "figures of recovery")


def write_recovery_trace(trace: RecoveryTrace, path: str | os.PathLike[str]) -> None:
    """Write a recovery trace atomically; `read_recovery_trace` reads it.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    write_record(trace, path)
