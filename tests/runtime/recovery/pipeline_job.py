"""A pipeline whose ranks an agent starts and replaces, and that are killed before certain passes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from tests.runtime.pipeline.examples import batches, loss
from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import LayerGraph, Pipeline
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery import Member, join
from wirewise.runtime.recovery.agent import Agent, Recoveries
from wirewise.runtime.recovery.checkpoints import CheckpointFolder
from wirewise.runtime.recovery.helping import HelperOptions
from wirewise.runtime.recovery.logs import SenderLog
from wirewise.runtime.recovery.pipelines import train_through_faults
from wirewise.runtime.recovery.recompute import RecoveryJournal


class Job(NamedTuple):
    """What all ranks are given."""

    build: Callable[[], LayerGraph]
    plan: StagePlan
    updates: int
    folder: Path
    every: int = 4
    """Updates from one checkpoint to the next."""
    clip: float | None = None
    helping: HelperOptions | None = None
    kills: Mapping[tuple[int, int], StagePass] = {}
    """Pass before which a rank kills itself, by generation and rank."""
    hangs: Mapping[tuple[int, int], StagePass] = {}
    """Pass before which a rank hangs, by generation and rank."""
    also: Sequence[int] = ()
    """Ranks that it kills before."""
    faults: Sequence[dict[str, Any]] = ()
    """Faults at named points."""
    apart: bool = False
    """Whether each rank has a folder of its own for logs."""
    keep: Literal["checkpoint", "replicas"] = "checkpoint"
    """How long messages are kept."""
    torn: bool = False
    """Whether all logs are cut when a rank is replaced."""


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def train(job: Job) -> None:
    """Train as a rank, and write down what it came to."""
    torch.set_num_threads(1)
    member = join(timeout_s=30.0)
    rank, plan = member.rank, job.plan
    (job.folder / f"pid-{rank}").write_text(str(os.getpid()))
    if job.torn and member.generation.number > 1:
        for path in (job.folder / "logs").rglob("*.log"):
            os.truncate(path, path.stat().st_size // 2)
    logs = job.folder / (f"logs-{rank}" if job.apart else "logs")
    log = SenderLog(logs, rank, chunk_steps=3 if job.keep == "checkpoint" else 1)
    journal = RecoveryJournal(
        log,
        [logs],
        member.store,
        generation=member.generation.number,
        fetched=job.folder / f"fetched-{rank}" if job.apart else None,
        interrupted=lambda: member.is_over,
    )
    checkpoints = CheckpointFolder(job.folder / "states", rank)
    pipeline = Pipeline(
        job.build(), plan, loss=loss, optimizer=adamw, clip=job.clip, seed=7, journal=journal, timeout_s=30.0,
        process_group=member.transport, around=killing(job, member),
        schedule=lambda one: torch.optim.lr_scheduler.StepLR(one, 3, gamma=0.5),
    )  # fmt: skip
    feed = batches(job.updates, plan, plan.place_of(rank)[1])
    seen, sizes = [], [0]
    for one in train_through_faults(
        pipeline,
        journal,
        lambda update: feed[update:],
        member,
        checkpoints=checkpoints,
        every=job.every,
        helping=job.helping,
        keep=job.keep,
    ):
        seen.append((one.update, one.loss))
        sizes.append(log.size_bytes)
    outcome = {"state": pipeline.state_dict(), "seen": seen, "log_bytes": sizes}
    (job.folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(outcome))
    pipeline.close()
    log.close()
    checkpoints.close()


def killing(job: Job, member: Member) -> Any:
    @contextmanager
    def around(step: StagePass) -> Iterator[None]:
        if job.kills.get((member.generation.number, member.rank)) == step:
            for other in [*job.also, member.rank]:
                os.kill(int((job.folder / f"pid-{other}").read_text()), signal.SIGKILL)
        if job.hangs.get((member.generation.number, member.rank)) == step:
            time.sleep(600)
        yield

    return around


def run(job: Job, spares: int = 1) -> tuple[list[dict[str, Any]], Recoveries]:
    """Outcomes of all ranks, and the recoveries."""
    job.folder.mkdir()
    told = [
        {**fault, "claim": str(job.folder / f"claim-{number}")} for number, fault in enumerate(job.faults)
    ]
    agent = Agent(
        train,
        (job,),
        ranks=job.plan.world_size,
        spares=spares,
        progress_timeout_s=2.0 if job.hangs else 0.0,
        environment={FAULTS: json.dumps(told)} if told else {},
    )
    recoveries = agent.run()
    found = [job.folder / f"rank-{rank}.pickle" for rank in range(job.plan.world_size)]
    return [pickle.loads(path.read_bytes()) for path in found], recoveries
