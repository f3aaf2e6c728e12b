"""A pipeline in processes: ranks that are killed, replacements that are started by hand, in new process member."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from tests.harness.processes import _SERVER
from tests.runtime.pipeline.examples import batches, loss
from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import LayerGraph, Pipeline
from wirewise.runtime.recovery.checkpoints import Checkpoints
from wirewise.runtime.recovery.control import interrupt
from wirewise.runtime.recovery.helping import Helping
from wirewise.runtime.recovery.logs import SenderLog
from wirewise.runtime.recovery.pipelines import train_through_faults
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.transport import Transport

TIMEOUT_S = 30.0


class Job(NamedTuple):
    """What all ranks are given."""

    build: Callable[[], LayerGraph]
    plan: StagePlan
    updates: int
    folder: Path
    every: int = 4
    """Updates from one checkpoint to the next."""
    clip: float | None = None
    helping: Helping | None = None
    kills: Mapping[tuple[int, int], StagePass] = {}
    """Pass before which a rank kills itself, by generation and rank."""
    torn: bool = False
    """Whether logs are cut when a rank is lost."""


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


class _Member:
    """The default process group of one generation after the other, as a store on the first process tells."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size, self.number = store, rank, size, 0
        self.told: list[tuple[str, int]] = []

    def join(self, generation: int) -> Transport:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"generation-{generation}", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=TIMEOUT_S),
        )
        self.number = generation
        return Transport(dist.group.WORLD, timeout_s=TIMEOUT_S)

    def regroup(self, error: Exception | None) -> tuple[int, Transport]:
        interrupt(dist.group.WORLD)
        dist.destroy_process_group()
        deadline = time.monotonic() + TIMEOUT_S
        while int(self.store.get("generation")) == self.number:
            assert time.monotonic() < deadline, "no next generation"
            time.sleep(0.005)
        generation = int(self.store.get("generation"))
        return generation, self.join(generation)

    def finish(self) -> bool:
        try:
            dist.barrier()
        except RuntimeError:
            return False
        return True

    def tell(self, phase: str, step: int = -1, **more: Any) -> None:
        self.told.append((phase, step))


def rank_main(job: Job, rank: int, generation: int, port: int, answer: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    member = _Member(store, rank, job.plan.world_size)
    log = SenderLog(job.folder / "logs", rank, chunk_steps=3)
    journal = RecoveryJournal(log, [job.folder / "logs"], store, generation=generation)

    @contextmanager
    def around(step: StagePass) -> Iterator[None]:
        if job.kills.get((member.number, rank)) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        yield

    pipeline = Pipeline(
        job.build(), job.plan, loss=loss, optimizer=adamw, clip=job.clip, seed=7, journal=journal, around=around,
        process_group=member.join(generation), timeout_s=TIMEOUT_S,
        schedule=lambda one: torch.optim.lr_scheduler.StepLR(one, 3, gamma=0.5),
    )  # fmt: skip
    checkpoints = Checkpoints(job.folder / "states", rank)

    def feed(update: int) -> Sequence[Any]:
        return batches(job.updates, job.plan, job.plan.place_of(rank)[1])[update:]

    seen, sizes = [], [0]
    for one in train_through_faults(
        pipeline, journal, feed, member, checkpoints=checkpoints, every=job.every, helping=job.helping
    ):
        seen.append((member.number, one.update, one.loss))
        sizes.append(log.size_bytes)
    state = pipeline.state_dict()
    pipeline.close()
    log.close()
    checkpoints.close()
    answer.send_bytes(pickle.dumps({"state": state, "seen": seen, "log_bytes": sizes, "told": member.told}))
    answer.close()
    dist.destroy_process_group()


def run(job: Job, timeout_s: float = 90.0) -> list[dict[str, Any]]:
    """Results of all ranks; each rank that dies is replaced in the next generation."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("generation", "1")
    running: dict[int, tuple[Any, Any]] = {}
    results: dict[int, dict[str, Any]] = {}

    def start(rank: int, generation: int) -> None:
        ours, theirs = _SERVER.Pipe(duplex=False)
        process = _SERVER.Process(target=rank_main, args=(job, rank, generation, store.port, theirs))
        process.start()
        theirs.close()
        running[rank] = process, ours

    deadline = time.monotonic() + timeout_s
    try:
        for rank in range(job.plan.world_size):
            start(rank, 1)
        generation = 1
        while running:
            ready = wait([pipe for _, pipe in running.values()], max(0.0, deadline - time.monotonic()))
            assert ready, f"ranks {sorted(running)} did not end within {timeout_s:g} s"
            dead = []
            for rank, (process, pipe) in list(running.items()):
                if pipe in ready:
                    try:
                        results[rank] = pickle.loads(pipe.recv_bytes())
                    except EOFError:
                        process.join()
                        assert process.exitcode == -signal.SIGKILL, f"rank {rank} raised"
                        dead.append(rank)
                    process.join()
                    pipe.close()
                    del running[rank]
            if dead:
                generation += 1
                for path in (job.folder / "logs").rglob("*.log") if job.torn else ():
                    os.truncate(path, path.stat().st_size // 2)
                store.set("generation", str(generation))
                for rank in dead:
                    start(rank, generation)
        return [results[rank] for rank in range(job.plan.world_size)]
    finally:
        for process, pipe in running.values():
            process.kill()
            process.join()
            pipe.close()
