"""User's own training script under an agent on this machine, with optional kills of its ranks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import kill
from pathlib import Path
from signal import SIGKILL
from time import time

import msgspec

from wirewise.errors import InputError
from wirewise.results import RecoveryRecord
from wirewise.runtime.recovery import Agent, Recoveries, RecoveryTimes, run_script
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions
from wirewise.trials.start import parse_command

__all__ = ["run"]

_MTBF_S = 5.0
"""Seconds between two kills, the mean."""
_TICK_S = 0.02


def run(
    command: Sequence[str],
    folder: Path,
    log: Callable[[str], None],
    *,
    spares: int,
    kills: int,
    seed: int,
    limits: AgentLimits,
    changes: ResumeOptions,
) -> tuple[tuple[RecoveryRecord, ...], int]:
    """Train to the end, whichever ranks die; returns the times of each recovery, and the number of executed kills.

    Args:
        command: A torchrun command of one machine with a script that calls `runtime.recovery.protect`.
        folder: Folder for the logs of all processes, and `recoveries.json`.
        log: Called with progress messages.
        spares: Number of processes besides the ranks.
        kills: Number of ranks to kill at random times, one about every 5 s.
        seed: Seed of ranks and times.
        limits: Timeouts of the agent.
        changes: How the script resumes from checkpoints of a job with other settings.

    Raises:
        InputError: The command is not torchrun with a script on one machine.
        PeerError: The training has failed; the message says why.
    """
    launch = parse_command(list(command))
    if not launch.torchrun or launch.arguments[:1] == ["-m"]:
        raise InputError(
            f"got the command {' '.join(command)!r}; expected torchrun --nproc-per-node RANKS SCRIPT ..., whose script "
            "calls wirewise.runtime.recovery.protect"
        )
    script, *arguments = launch.arguments
    if not Path(script).is_file():
        raise InputError(f"{script!r} is no file; expected the script that torchrun is to start")
    agent = Agent(
        run_script,
        [script, arguments],
        ranks=launch.ranks,
        spares=spares,
        folder=folder,
        environment=changes.environment(),
        **msgspec.structs.asdict(limits),
    )
    log(f"{launch.ranks} ranks and {spares} spares of {script}; logs of the processes in {folder}")
    with _killer(agent, kills, random.Random(seed)) as killed:
        outcome = agent.run()
    if len(killed) < kills:
        log(f"the training ended after {len(killed)} of {kills} kills")
    return tuple(_records(outcome, killed)), len(killed)


@contextmanager
def _killer(agent: Agent, kills: int, draw: random.Random) -> Iterator[list[tuple[int, float]]]:
    """Kills ranks within the block; the list takes rank and time, in seconds since 1970, of each kill."""
    killed: list[tuple[int, float]] = []
    ended = threading.Event()

    def strike() -> None:
        # Instants are those of the training, however long it takes to start.
        while not agent.outcome.generations and not ended.wait(_TICK_S):
            pass
        while len(killed) < kills and not ended.wait(_TICK_S + draw.expovariate(1 / _MTBF_S)):
            pids = agent.pids
            last = agent.outcome.recoveries[-1:]
            # While a recovery goes on nobody knows whom a kill would strike.
            if pids and agent.outcome.generations and all(one.committed_s for one in last):
                rank = draw.choice(sorted(pids))
                killed.append((rank, time()))
                with suppress(ProcessLookupError):
                    kill(pids[rank], SIGKILL)

    thread = threading.Thread(target=strike, name="wirewise-killer", daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def _records(outcome: Recoveries, killed: Sequence[tuple[int, float]]) -> Iterator[RecoveryRecord]:
    began_s = min((one.seen_s for one in outcome.recoveries), default=0.0)
    for one in outcome.recoveries:
        for rank in one.ranks:
            since_s = max(
                (at_s for r, at_s in killed if r == rank and at_s <= one.seen_s), default=one.seen_s
            )
            if one.committed_s:
                yield _record(one, rank, since_s, began_s)


def _record(one: RecoveryTimes, rank: int, since_s: float, began_s: float) -> RecoveryRecord:
    return RecoveryRecord(
        rank=rank,
        at_s=since_s - min(began_s, since_s),
        strategy=one.strategy,
        detect_s=one.seen_s - since_s,
        fence_s=one.noticed_s - one.seen_s,
        regroup_s=one.regrouped_s - one.noticed_s,
        restore_s=one.restored_s - one.regrouped_s,
        resume_s=one.committed_s - one.restored_s,
        lost_iterations=one.lost_iterations,
        replayed_iterations=one.replayed_iterations,
        bit_equal=None,
    )
