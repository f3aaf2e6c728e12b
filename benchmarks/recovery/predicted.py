"""R10, the part of predictions: recoveries from logs that plans foresee, and what they take, computing slept."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.cost import Links
from wirewise.lab.accelerator import VirtualLayer
from wirewise.plans import MessageLog as LoggedPair
from wirewise.plans import RecoveryPlan, StagePlan, StageRecovery
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import Pipeline
from wirewise.runtime.recovery.logs import MessageLog
from wirewise.runtime.recovery.pipelines import train_through_faults
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.transport import Transport
from wirewise.sim.recovery import recovery_phases
from wirewise.trace import ProtectedStage, RecoveryTrace, StageMessages

__all__ = ["predicted_recoveries"]

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch.distributed", "torch._dynamo", "wirewise.runtime.recovery.pipelines"])
_FORWARD_S = (0.010, 0.014, 0.006, 0.012)
"""Slept seconds of a forward pass of each stage; a backward pass takes twice as long."""
_VALUES, _MICROBATCHES, _TIMEOUT_S = 4096, 4, 30.0
_LIVE = 3
"""Updates after the one in which ranks are killed."""


class _Kill(NamedTuple):
    stages: tuple[int, ...]
    """Stages that die together."""
    update: int
    """Update at whose first pass they die; all before it are recomputed."""


class _Ranks:
    """The default process group of one generation after the other."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.store, self.rank, self.generation = store, rank, 0

    def join(self, generation: int) -> Transport:
        self.generation = generation
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"generation-{generation}", self.store),
            rank=self.rank,
            world_size=len(_FORWARD_S),
            timeout=datetime.timedelta(seconds=_TIMEOUT_S),
        )
        return Transport(dist.group.WORLD, timeout_s=_TIMEOUT_S)

    def regroup(self, error: Exception) -> tuple[int, Transport]:
        """Leave the group, so that others notice too, and join the next."""
        for group in dist.distributed_c10d._world.pg_map:
            for peer in {*range(group.size())} - {group.rank()}:
                with suppress(RuntimeError):
                    # A wait that is cut short closes all connections of the group.
                    group.recv([torch.zeros(1)], peer, 2**31 - 1).wait(datetime.timedelta(milliseconds=2))
        dist.destroy_process_group()
        self.store.wait([f"generation-{self.generation + 1}"], datetime.timedelta(seconds=_TIMEOUT_S))
        return self.generation + 1, self.join(self.generation + 1)


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def _warm() -> None:
    """What a spare does before it has a role: build an optimizer, and make a step."""
    torch.set_num_threads(1)
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    _sgd(list(layer.parameters())).step()


def _rank(kill: _Kill, plan: StagePlan, folder: Path, port: int, role: Any, answer: Any) -> None:
    _warm()
    rank, generation = role.recv()
    ranks = _Ranks(dist.TCPStore("127.0.0.1", port, is_master=False), rank)
    if not generation:
        ranks.store.set(f"process-{rank}", str(os.getpid()))
    log = MessageLog(folder / "logs", rank)
    journal = RecoveryJournal(log, [folder / "logs"], ranks.store, generation=generation)
    passes: list[float] = []

    @contextmanager
    def around(step: StagePass) -> Iterator[None]:
        # The last of them is the last to come to the update, and takes the others with it.
        if not ranks.generation and rank == kill.stages[-1] and step.update == kill.update:
            (folder / "killed").write_text(repr(time.perf_counter()))
            for stage in kill.stages:
                os.kill(int(ranks.store.get(f"process-{stage}")), signal.SIGKILL)
        begin_s = time.perf_counter()
        yield
        passes.append(time.perf_counter() - begin_s)

    modules = nn.ModuleList(VirtualLayer(64, forward_s=s, backward_s=2 * s) for s in _FORWARD_S)
    pipeline = Pipeline(
        modules, plan, loss=_loss, optimizer=_sgd, journal=journal, around=around,
        process_group=ranks.join(generation), timeout_s=_TIMEOUT_S,
    )  # fmt: skip
    x = torch.ones(_MICROBATCHES, _VALUES)

    def feed(update: int) -> Sequence[tuple[Tensor, Tensor]]:
        return [(x, x)] * (kill.update + _LIVE - update)

    done = [
        (ranks.generation, one.update, time.perf_counter())
        for one in train_through_faults(pipeline, journal, feed, ranks.regroup)
    ]
    pipeline.close()
    log.close()
    answer.send_bytes(pickle.dumps((done, statistics.fmean(passes))))
    answer.close()
    dist.destroy_process_group()


class _Run(NamedTuple):
    step_s: float
    """Seconds of an update while all live."""
    compute_s: list[float]
    """Seconds of a rank's passes in an update, [stages]."""
    recovery_s: float
    """Seconds from the last kill to the end of the update under way, less those of an update."""


def _run(kill: _Kill, plan: StagePlan) -> _Run:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("generation-0", "")
        started = []
        for _ in range(plan.world_size + len(kill.stages)):
            role, given = _SERVER.Pipe(duplex=False)
            ours, theirs = _SERVER.Pipe(duplex=False)
            process = _SERVER.Process(target=_rank, args=(kill, plan, folder, store.port, role, theirs))
            process.start()
            theirs.close()
            started.append((process, given, ours))
        try:
            return _followed(kill, plan, folder, store, started)
        finally:
            for process, _, _ in started:
                process.kill()
                process.join()


def _followed(kill: _Kill, plan: StagePlan, folder: Path, store: dist.Store, started: list[Any]) -> _Run:
    # Those that are left are spares; they are warm by the time of the kill.
    at = {rank: started[rank] for rank in range(plan.world_size)}
    for rank, (_, given, _) in at.items():
        given.send((rank, 0))
    spares = iter(started[plan.world_size :])
    found: dict[int, Any] = {}
    deadline_s, dead = time.monotonic() + 4 * _TIMEOUT_S, 0
    while len(found) < plan.world_size:
        ready = wait(
            [ours for rank, (_, _, ours) in at.items() if rank not in found],
            max(deadline_s - time.monotonic(), 0.0),
        )
        if not ready:
            raise TimeoutError(f"ranks {sorted(at.keys() - found)} did not end")
        for rank, (_, _, ours) in [*at.items()]:
            if ours in ready:
                try:
                    found[rank] = pickle.loads(ours.recv_bytes())
                except EOFError as error:
                    at[rank][0].join()
                    if at[rank][0].exitcode != -signal.SIGKILL:
                        raise RuntimeError(f"rank {rank} raised; its traceback is above") from error
                    at[rank] = next(spares)
                    at[rank][1].send((rank, 1))
                    dead += 1
        if dead == len(kill.stages):
            store.set("generation-1", "")
            dead = 0
    killed_s = float((folder / "killed").read_text())
    ends = {rank: {update: end_s for _, update, end_s in done} for rank, (done, _) in found.items()}
    last = {
        update: max(own[update] for own in ends.values())
        for update in range(kill.update, kill.update + _LIVE)
    }
    step_s = statistics.median(last[n + 1] - last[n] for n in range(kill.update, kill.update + _LIVE - 1))
    return _Run(
        step_s,
        [2 * _MICROBATCHES * found[rank][1] for rank in range(plan.world_size)],
        last[kill.update] - killed_s - step_s,
    )


def predicted_recoveries(repeats: int = 3, updates: Sequence[int] = (8, 20)) -> list[dict[str, Any]]:
    """For each stage, and for two neighbours that die together: predicted and measured seconds of a recovery.

    What a recovery takes whatever is recomputed comes from kills in the first update; all else from times of passes.

    Args:
        repeats: Kills of each kind, of which the median counts.
        updates: Updates that are recomputed.
    """
    names = [str(n) for n in range(len(_FORWARD_S))]
    plan = StagePlan.by_hand(names, range(1, len(names)), style="1f1b", microbatches=_MICROBATCHES)
    first = [_run(_Kill((1,), 0), plan) for _ in range(max(repeats, 3))]
    units = [*((n,) for n in range(len(names))), (1, 2)]
    found = []
    for unit in units:
        for update in updates:
            runs = [_run(_Kill(unit, update), plan) for _ in range(repeats)]
            trace = _trace(runs, statistics.median(one.recovery_s for one in first))
            own = _plan(trace, unit)
            phases = recovery_phases(own, trace, Links.uniform(len(names), 1e9, 1e-4), unit[0], update)
            # Predictions count half of the step under way, of which nothing was done here.
            predicted_s = phases.total_s - trace.step_s / 2
            measured_s = statistics.median(one.recovery_s for one in runs)
            found.append(
                {
                    "stages": list(unit),
                    "updates": update,
                    "measured_s": measured_s,
                    "predicted_s": predicted_s,
                    "error": predicted_s / measured_s - 1,
                    "step_s": trace.step_s,
                }
            )
    return found


def _trace(runs: Sequence[_Run], fixed_s: float) -> RecoveryTrace:
    compute = [statistics.median(own) for own in zip(*(one.compute_s for one in runs), strict=True)]
    size = 4.0 * _VALUES * _MICROBATCHES
    pairs = [(n, n + 1) for n in range(len(compute) - 1)]
    return RecoveryTrace(
        stages=tuple(ProtectedStage(ranks=(n,), compute_s=s) for n, s in enumerate(compute)),
        messages=tuple(
            StageMessages(source=a, target=b, size_bytes=size)
            for pair in pairs
            for a, b in (pair, pair[::-1])
        ),
        step_s=statistics.median(one.step_s for one in runs),
        microbatches=_MICROBATCHES,
        detect_s=fixed_s,
        fence_s=0.0,
        regroup_s=0.0,
        resume_s=0.0,
        spawn_s=0.0,
    )


def _plan(trace: RecoveryTrace, unit: Sequence[int]) -> RecoveryPlan:
    """All messages logged but those inside the unit."""
    group_of = [n - sum(1 for one in unit[1:] if one <= n) for n in range(len(trace.stages))]
    return RecoveryPlan(
        world_size=trace.world_size,
        planner="by hand",
        stages=tuple(
            StageRecovery(ranks=stage.ranks, strategy="log", group=group)
            for stage, group in zip(trace.stages, group_of, strict=True)
        ),
        logs=tuple(
            LoggedPair(source=one.source, target=one.target, tier="memory", bytes_per_step=one.size_bytes)
            for one in trace.messages
            if group_of[one.source] != group_of[one.target]
        ),
        interval_steps=1000,
        mtbf_s=3600.0,
    )
