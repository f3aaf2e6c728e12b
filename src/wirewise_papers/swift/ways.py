"""Training under kills by each recovery method: commands of hosts, kills, and steps."""

from __future__ import annotations

import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wirewise.decoding import decode_json
from wirewise.errors import PeerError
from wirewise.files import write_json
from wirewise.hosts.slurm import SlurmHosts
from wirewise.plans import RecoveryPlan
from wirewise.results import RecoveryRecord
from wirewise.runtime.recovery.agent import RECOVERIES, Recoveries, RecoveryTimes
from wirewise.trials.last_words import failure_reason
from wirewise.trials.start import Hosts
from wirewise_papers.swift import commit as swift_commit
from wirewise_papers.swift.job import WAYS, SwiftJob, script_settings
from wirewise_papers.swift.kills import (
    Kill,
    KillCost,
    Killer,
    KillSignals,
    kill_costs,
    read_steps,
    step_seconds,
)
from wirewise_papers.swift.records import FinalState, SurvivalRecord
from wirewise_papers.swift.slurm_kills import SlurmKillSignals

__all__ = [
    "TrainingSummary",
    "checkpoint_seconds",
    "final_states",
    "match_recoveries",
    "record_of",
    "recoveries_of",
    "train_with_checkpoints",
    "train_with_commits",
    "train_with_kills",
    "train_with_spares",
]

_PORT = 29600
_SCRIPT = Path(swift_commit.__file__).with_name("script.py")
_LEAST_S, _KILL_S = 180.0, 30.0
"""Seconds that a training may take, and more of them for each kill."""


class TrainingSummary(NamedTuple):
    """Summary of a training, from its recorded steps."""

    steps: int
    seconds: float
    """Seconds from the first to the last step."""
    step_s: float
    """Median seconds of a step before the first kill."""
    mean_step_s: float
    """Mean seconds of a step, such that n steps take n times as long."""
    kills: list[Kill]
    spared: int
    survived: list[KillCost]
    first_s: float
    """Time of the first step on the monotonic clock."""


def train_with_checkpoints(
    network: Hosts, folder: Path, job: SwiftJob, *, every: int, kills: Sequence[tuple[float, int]] = ()
) -> TrainingSummary:
    """Train the unmodified script with a checkpoint every few steps, or none if 0, under torchrun on each host.

    Restarts need TORCH_DISABLE_SHARE_RDZV_TCP_STORE: without it torch 2.13 finds addresses of the earlier run.
    """
    common = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={job.hosts}", "--nproc-per-node=1"]
    common += ["--max-restarts=1000", "--monitor-interval=0.05", "--rdzv-backend=c10d", "--rdzv-id=job"]
    common += [f"--rdzv-endpoint={network.address(0)}:{_PORT}"]
    script = [str(_SCRIPT)] if job.job == "ddp" else ["-m", "wirewise_papers.swift.jobs"]
    script += [str(folder)]
    commands = [
        [*common, f"--rdzv-conf=is_host={int(host == 0)}", f"--local-addr={network.address(host)}", *script]
        for host in range(job.hosts)
    ]
    settings = script_settings(job, every=every)
    return train_with_kills(
        network, folder, job, commands, settings, kills, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    )


def train_with_commits(
    network: Hosts, folder: Path, job: SwiftJob, *, every: int, kills: Sequence[tuple[float, int]] = ()
) -> TrainingSummary:
    """Train the script with in-memory commits; each host restarts its rank after a failure."""
    port = str(_PORT + 1)
    store = [[sys.executable, "-c", swift_commit.STORE, port], *[["true"]] * (job.hosts - 1)]
    script = [sys.executable, swift_commit.__file__, str(folder)]
    commands = [
        ["sh", "-c", swift_commit.LOOP, "loop", *script, str(host), network.address(0), port]
        for host in range(job.hosts)
    ]
    holder = network.launch(store, launcher="none")
    try:
        return train_with_kills(network, folder, job, commands, script_settings(job, every=every), kills)
    finally:
        holder.stop()


def train_with_spares(
    network: Hosts,
    folder: Path,
    job: SwiftJob,
    kills: Sequence[tuple[float, int]] = (),
    signal_number: int = signal.SIGKILL,
) -> TrainingSummary:
    """Train the protected script, under an agent on each host."""
    common = [sys.executable, "-m", "wirewise_papers.swift.host", str(folder)]
    commands = [[*common, str(host), network.address(0), str(_PORT + 2)] for host in range(job.hosts)]
    settings = script_settings(job, every=0)
    return train_with_kills(network, folder, job, commands, settings, kills, signal_number=signal_number)


def train_with_kills(
    network: Hosts,
    folder: Path,
    job: SwiftJob,
    commands: Sequence[Sequence[str]],
    settings: Mapping[str, object],
    kills: Sequence[tuple[float, int]],
    environment: Mapping[str, str] | None = None,
    signal_number: int = signal.SIGKILL,
) -> TrainingSummary:
    """Run a command on each host, kill ranks during training, and read the steps.

    Args:
        network: Entered hosts of the training.
        folder: New folder for the settings, the steps and the logs.
        job: Settings of the run.
        commands: Command of each host.
        settings: Settings of the script.
        kills: Time after the first step, in seconds, and rank of each kill.
        environment: Variables besides those of the lab.
        signal_number: Signal in place of SIGKILL.

    Raises:
        PeerError: The training did not finish; the message quotes the end of its output.
    """
    folder.mkdir()
    limit_s = _LEAST_S + _KILL_S * len(kills)
    with SlurmKillSignals(network) if isinstance(network, SlurmHosts) else KillSignals() as sender:
        write_json(folder / "script.json", {**settings, "clock_ahead_s": dict(sender.clock_ahead_s)})
        with Killer(folder, job.hosts, kills, signal_number, sender) as killer:
            result = network.run(
                commands, launcher="none", environment=environment, folder=folder / "logs", timeout_s=limit_s
            )
    if not result.ok:
        why = f"it did not end within {limit_s:g} s. " if result.timed_out else ""
        raise PeerError(
            f"the training in {folder.name!r} failed: {why}{failure_reason(result, folder / 'logs')}"
        )
    steps = [read_steps(folder, rank, sender.ahead_s) for rank in range(job.hosts)]
    lines = [line for own in steps for line in own]
    first_s = min(line.at_s for line in lines)
    return TrainingSummary(
        steps=max(line.step for line in lines),
        seconds=max(line.at_s for line in lines) - first_s,
        step_s=step_seconds(steps[0], killer.kills),
        mean_step_s=step_seconds(steps[0], killer.kills, average=statistics.fmean),
        kills=killer.kills,
        spared=killer.spared,
        survived=kill_costs(killer.kills, folder, sender.ahead_s),
        first_s=first_s,
    )


def record_of(
    method: str, summary: TrainingSummary, unprotected_step_s: float, bit_equal: bool | None = None
) -> SurvivalRecord:
    """Make the reported record of a training.

    Args:
        method: Name of the recovery method, one of `WAYS`.
        summary: Training under kills.
        unprotected_step_s: Mean step time without protection and without failures, in seconds.
        bit_equal: Whether the final state equals that of a failure-free training. None if not compared.
    """
    return SurvivalRecord(
        meaning=WAYS[method],
        kills=len(summary.kills),
        spared=summary.spared,
        step_s=summary.step_s,
        resumed_s=tuple(one.resumed_s for one in summary.survived),
        recovered_s=tuple(one.recovered_s for one in summary.survived),
        repeated=sum(one.repeated for one in summary.survived),
        steps=summary.steps,
        seconds=summary.seconds,
        goodput=(summary.steps - 1) * unprotected_step_s / summary.seconds,
        bit_equal=bit_equal,
    )


def checkpoint_seconds(folder: Path) -> float:
    """Duration of the last checkpoint of the script, in seconds."""
    return float((folder / "checkpoints").read_text().split()[-1])


def final_states(folder: Path, job: SwiftJob) -> list[FinalState]:
    """Final state of each rank of a protected training."""
    return [decode_json((folder / f"final-{r}.json").read_bytes(), FinalState) for r in range(job.hosts)]


def recoveries_of(
    folder: Path, summary: TrainingSummary, bit_equal: bool, plan: RecoveryPlan
) -> tuple[RecoveryRecord, ...]:
    """Phases of each recovery, from the time of the signal.

    Args:
        folder: Folder of the protected training.
        summary: Summary of the training.
        bit_equal: Whether the final state equals that of a failure-free training.
        plan: Plan with the predicted phases.
    """
    records = []
    for kill, one in match_recoveries(folder, summary):
        if one is not None:
            phases = plan.recoveries[min(kill.rank, len(plan.recoveries) - 1)]
            again_s = one.resumed_s - one.restored_s if one.replayed_iterations else 0.0
            records.append(
                RecoveryRecord(
                    rank=kill.rank,
                    at_s=kill.at_s - summary.first_s,
                    strategy=one.strategy,
                    detect_s=one.seen_s - kill.clock_s,
                    fence_s=one.noticed_s - one.seen_s,
                    regroup_s=one.regrouped_s - one.noticed_s,
                    restore_s=one.restored_s - one.regrouped_s,
                    recompute_s=again_s,
                    resume_s=one.committed_s - one.restored_s - again_s,
                    lost_iterations=one.lost_iterations,
                    replayed_iterations=one.replayed_iterations,
                    bit_equal=bit_equal,
                    predicted_s={
                        name.removesuffix("_s"): getattr(phases, name) for name in phases.__struct_fields__
                    },
                )
            )
    return tuple(records)


def match_recoveries(folder: Path, summary: TrainingSummary) -> list[tuple[Kill, RecoveryTimes | None]]:
    """Match each kill with its completed recovery: the first one with a new step after the kill."""
    told = decode_json((folder / "agent-0" / RECOVERIES).read_bytes(), Recoveries).recoveries

    def of(kill: Kill) -> RecoveryTimes | None:
        done = [one for one in told if one.committed_s > kill.clock_s and kill.rank in one.ranks]
        return done[0] if done else None

    return [(kill, of(kill)) for kill in summary.kills]
