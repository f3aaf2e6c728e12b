"""One training under kills, by each way to survive them: commands of the hosts, the kills, and what the steps tell."""

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
from wirewise.plans import RecoveryPlan
from wirewise.recipes import swift_commit
from wirewise.recipes.swift_job import WAYS, SwiftJob, script_settings
from wirewise.results import FinalState, RecoveryRecord, SurvivalRecord
from wirewise.runtime.recovery.agent import RECOVERIES, Recovered, Recoveries
from wirewise.trials.kills import Kill, Killer, Strikes, Survived, read_steps, step_seconds, survived
from wirewise.trials.last_words import why_it_failed
from wirewise.trials.slurm import SlurmHosts
from wirewise.trials.slurm_kills import SlurmStrikes
from wirewise.trials.start import Hosts

__all__ = [
    "TrainingSummary",
    "by_checkpoints",
    "by_commits",
    "by_spares",
    "checkpoint_seconds",
    "final_states",
    "record_of",
    "recoveries_of",
    "recoveries_told",
    "trained",
]

_PORT = 29600
_SCRIPT = Path(swift_commit.__file__).with_name("swift_script.py")
_LEAST_S, _KILL_S = 180.0, 30.0
"""Seconds that a training may take, and more of them for each kill."""


class TrainingSummary(NamedTuple):
    """A training, as its steps tell of it."""

    steps: int
    seconds: float
    """Seconds from the first to the last step."""
    step_s: float
    """Median seconds of a step before the first kill."""
    mean_step_s: float
    """Mean seconds of one, of which so many steps make as many seconds."""
    kills: list[Kill]
    spared: int
    survived: list[Survived]
    first_s: float
    """Time of the first step on the monotonic clock."""


def by_checkpoints(
    network: Hosts, folder: Path, job: SwiftJob, *, every: int, kills: Sequence[tuple[float, int]] = ()
) -> TrainingSummary:
    """The unmodified script with a checkpoint every so many steps, 0: none, under torchrun on each host.

    Restarts need TORCH_DISABLE_SHARE_RDZV_TCP_STORE: without it torch 2.13 finds addresses of the earlier run.
    """
    common = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={job.hosts}", "--nproc-per-node=1"]
    common += ["--max-restarts=1000", "--monitor-interval=0.05", "--rdzv-backend=c10d", "--rdzv-id=job"]
    common += [f"--rdzv-endpoint={network.address(0)}:{_PORT}"]
    script = [str(_SCRIPT)] if job.job == "ddp" else ["-m", "wirewise.recipes.swift_jobs"]
    script += [str(folder)]
    commands = [
        [*common, f"--rdzv-conf=is_host={int(host == 0)}", f"--local-addr={network.address(host)}", *script]
        for host in range(job.hosts)
    ]
    settings = script_settings(job, every=every)
    return trained(
        network, folder, job, commands, settings, kills, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    )


def by_commits(
    network: Hosts, folder: Path, job: SwiftJob, *, every: int, kills: Sequence[tuple[float, int]] = ()
) -> TrainingSummary:
    """The script with commits in memory; each host starts its rank again when it has died."""
    port = str(_PORT + 1)
    store = [[sys.executable, "-c", swift_commit.STORE, port], *[["true"]] * (job.hosts - 1)]
    script = [sys.executable, swift_commit.__file__, str(folder)]
    commands = [
        ["sh", "-c", swift_commit.LOOP, "loop", *script, str(host), network.address(0), port]
        for host in range(job.hosts)
    ]
    holder = network.launch(store, launcher="none")
    try:
        return trained(network, folder, job, commands, script_settings(job, every=every), kills)
    finally:
        holder.stop()


def by_spares(
    network: Hosts,
    folder: Path,
    job: SwiftJob,
    kills: Sequence[tuple[float, int]] = (),
    signal_number: int = signal.SIGKILL,
) -> TrainingSummary:
    """The protected script, under an agent on each host."""
    common = [sys.executable, "-m", "wirewise.recipes.swift_host", str(folder)]
    commands = [[*common, str(host), network.address(0), str(_PORT + 2)] for host in range(job.hosts)]
    settings = script_settings(job, every=0)
    return trained(network, folder, job, commands, settings, kills, signal_number=signal_number)


def trained(
    network: Hosts,
    folder: Path,
    job: SwiftJob,
    commands: Sequence[Sequence[str]],
    settings: Mapping[str, object],
    kills: Sequence[tuple[float, int]],
    environment: Mapping[str, str] | None = None,
    signal_number: int = signal.SIGKILL,
) -> TrainingSummary:
    """Run a command on each host, kill ranks meanwhile, and read the steps.

    Args:
        network: Entered hosts that the training is started on.
        folder: New folder for the settings, the steps and the logs.
        job: Settings of the run.
        commands: Command of each host.
        settings: What the script reads.
        kills: Seconds after the first step, and rank, of each kill.
        environment: Variables besides those of the lab.
        signal_number: Signal in place of SIGKILL.

    Raises:
        PeerError: The training did not come to its end; the message holds the last words.
    """
    folder.mkdir()
    limit_s = _LEAST_S + _KILL_S * len(kills)
    with SlurmStrikes(network) if isinstance(network, SlurmHosts) else Strikes() as strikes:
        write_json(folder / "script.json", {**settings, "clock_ahead_s": dict(strikes.clock_ahead_s)})
        with Killer(folder, job.hosts, kills, signal_number, strikes) as killer:
            result = network.run(
                commands, launcher="none", environment=environment, folder=folder / "logs", timeout_s=limit_s
            )
    if not result.ok:
        why = f"it did not end within {limit_s:g} s. " if result.timed_out else ""
        raise PeerError(
            f"the training in {folder.name!r} failed: {why}{why_it_failed(result, folder / 'logs')}"
        )
    steps = [read_steps(folder, rank, strikes.ahead_s) for rank in range(job.hosts)]
    lines = [line for own in steps for line in own]
    first_s = min(line.at_s for line in lines)
    return TrainingSummary(
        steps=max(line.step for line in lines),
        seconds=max(line.at_s for line in lines) - first_s,
        step_s=step_seconds(steps[0], killer.kills),
        mean_step_s=step_seconds(steps[0], killer.kills, average=statistics.fmean),
        kills=killer.kills,
        spared=killer.spared,
        survived=survived(killer.kills, folder, strikes.ahead_s),
        first_s=first_s,
    )


def record_of(
    way: str, found: TrainingSummary, unprotected_step_s: float, bit_equal: bool | None = None
) -> SurvivalRecord:
    """What is reported of a training.

    Args:
        way: Name of the way to survive, of `WAYS`.
        found: Training under kills.
        unprotected_step_s: Mean seconds of a step without protection and without failures.
        bit_equal: Whether the final state is that of an undisturbed training; None: not compared.
    """
    return SurvivalRecord(
        meaning=WAYS[way],
        kills=len(found.kills),
        spared=found.spared,
        step_s=found.step_s,
        resumed_s=tuple(one.resumed_s for one in found.survived),
        recovered_s=tuple(one.recovered_s for one in found.survived),
        repeated=sum(one.repeated for one in found.survived),
        steps=found.steps,
        seconds=found.seconds,
        goodput=(found.steps - 1) * unprotected_step_s / found.seconds,
        bit_equal=bit_equal,
    )


def checkpoint_seconds(folder: Path) -> float:
    """Seconds that the last checkpoint of the script took."""
    return float((folder / "checkpoints").read_text().split()[-1])


def final_states(folder: Path, job: SwiftJob) -> list[FinalState]:
    """What each rank of a protected training held at its end."""
    return [decode_json((folder / f"final-{r}.json").read_bytes(), FinalState) for r in range(job.hosts)]


def recoveries_of(
    folder: Path, found: TrainingSummary, bit_equal: bool, plan: RecoveryPlan
) -> tuple[RecoveryRecord, ...]:
    """The phases of each recovery, from the instant of the signal.

    Args:
        folder: Folder of the protected training.
        found: What was read of it.
        bit_equal: Whether the final state is that of an undisturbed training.
        plan: Plan with the predicted phases.
    """
    records = []
    for kill, one in recoveries_told(folder, found):
        if one is not None:
            phases = plan.recoveries[min(kill.rank, len(plan.recoveries) - 1)]
            again_s = one.resumed_s - one.restored_s if one.replayed_iterations else 0.0
            records.append(
                RecoveryRecord(
                    rank=kill.rank,
                    at_s=kill.at_s - found.first_s,
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


def recoveries_told(folder: Path, found: TrainingSummary) -> list[tuple[Kill, Recovered | None]]:
    """Each kill with the recovery from it that came to an end: the first one with a new step after the kill."""
    told = decode_json((folder / "agent-0" / RECOVERIES).read_bytes(), Recoveries).recoveries

    def of(kill: Kill) -> Recovered | None:
        done = [one for one in told if one.committed_s > kill.clock_s and kill.rank in one.ranks]
        return done[0] if done else None

    return [(kill, of(kill)) for kill in found.kills]
