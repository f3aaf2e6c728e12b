"""R10, the part of predictions: recoveries from logs as plans foresee them, and as they are; computing slept."""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.cost import Links
from wirewise.lab.accelerator import VirtualLayer
from wirewise.plans import MessageLog, RecoveryPlan, StagePlan, StageRecovery
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import Pipeline
from wirewise.runtime.recovery import Agent, RecoveryJournal, SenderLog, join, train_through_faults
from wirewise.sim.recovery import recovery_phases
from wirewise.trace import ProtectedStage, RecoveryTrace, StageMessages

_FORWARD_S = (0.010, 0.014, 0.006, 0.012)
"""Slept seconds of a forward pass of each stage; a backward pass takes twice as long."""
_VALUES, _MICROBATCHES = 4096, 4
"""Values of a message between two stages, and microbatches of an update."""
UNITS = ((0,), (1,), (2,), (3,), (1, 2))
"""Stages that die together, each of them once."""
_LIVE = 3
"""Updates after the one in which ranks are killed."""


class _Kill(NamedTuple):
    stages: tuple[int, ...]
    """Stages that die together."""
    update: int
    """Update at whose first pass they die; all before it are recomputed."""


def _plan() -> StagePlan:
    stages = len(_FORWARD_S)
    names = [str(number) for number in range(stages)]
    return StagePlan.from_cuts(names, range(1, stages), style="1f1b", microbatches=_MICROBATCHES)


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def train(folder: str, kill: _Kill) -> None:
    """Train as a rank of the pipeline, kill where it is asked for, and write down when updates were done."""
    torch.set_num_threads(1)
    # The first optimizer takes a second; a spare has it behind it.
    _sgd([nn.Parameter(torch.ones(1))]).step()
    here, passes = Path(folder), list[float]()
    (here / f"warm-{os.getpid()}").touch()
    member = join(30.0)
    (here / f"process-{member.rank}").write_text(str(os.getpid()))
    log = SenderLog(here / "logs", member.rank)
    store = dist.FileStore(str(here / "store"))
    journal = RecoveryJournal(log, [here / "logs"], store, generation=member.generation.number)

    @contextmanager
    def around(step: StagePass) -> Iterator[None]:
        # The last of them is the last to come to the update, and takes the others with it.
        first = member.generation.number == 1 and member.rank == kill.stages[-1]
        if first and step.update == kill.update:
            while len(list(here.glob("warm-*"))) < len(_FORWARD_S) + len(kill.stages):
                time.sleep(0.05)
            (here / "killed").write_text(repr(time.time()))
            for stage in kill.stages:
                os.kill(int((here / f"process-{stage}").read_text()), signal.SIGKILL)
        begin_s = time.perf_counter()
        yield
        passes.append(time.perf_counter() - begin_s)

    modules = nn.ModuleList(VirtualLayer(64, forward_s=s, backward_s=2 * s) for s in _FORWARD_S)
    # The agent tells who is lost, so that nobody asks around.
    pipeline = Pipeline(
        modules,
        _plan(),
        loss=_loss,
        optimizer=_sgd,
        journal=journal,
        around=around,
        process_group=member.transport,
    )
    x = torch.ones(_MICROBATCHES, _VALUES)

    def feed(update: int) -> Sequence[tuple[Tensor, Tensor]]:
        return [(x, x)] * (kill.update + _LIVE - update)

    done = {one.update: time.time() for one in train_through_faults(pipeline, journal, feed, member)}
    (here / f"rank-{member.rank}.json").write_text(json.dumps({"done": done, "passes": passes}))
    pipeline.close()
    log.close()


class _Run(NamedTuple):
    step_s: float
    """Seconds of an update while all live."""
    compute_s: list[float]
    """Seconds of a rank's passes in an update, [stages]."""
    recovery_s: float
    """Seconds from the kill until the update under way is done, less those of an update."""


def _run(kill: _Kill) -> _Run:
    ranks = len(_FORWARD_S)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        agent = Agent(
            train,
            (name, kill),
            ranks=ranks,
            spares=len(kill.stages),
            preload=("torch", "torch.distributed", "torch._dynamo", "wirewise.runtime.recovery.pipelines"),
        )
        agent.run()
        found = [json.loads((Path(name) / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
        killed_s = float((Path(name) / "killed").read_text())
    updates = range(kill.update, kill.update + _LIVE)
    last = {update: max(one["done"][str(update)] for one in found) for update in updates}
    step_s = statistics.median(last[n + 1] - last[n] for n in updates[:-1])
    return _Run(
        step_s,
        [2 * _MICROBATCHES * statistics.fmean(one["passes"]) for one in found],
        last[kill.update] - killed_s - step_s,
    )


def predicted_recoveries(
    repeats: int = 3, updates: Sequence[int] = (8, 20), units: Sequence[tuple[int, ...]] = UNITS
) -> list[dict[str, Any]]:
    """Predicted and measured seconds of recoveries, a row for each set of stages that die together.

    What a recovery takes whatever is recomputed comes from kills in the first update, all else from times of passes.

    Args:
        repeats: Kills of each kind, of which the median counts.
        updates: Updates that are recomputed.
        units: Stages that die together.
    """
    fixed_s = {
        size: statistics.median(_run(_Kill((1, 2)[:size], 0)).recovery_s for _ in range(repeats))
        for size in {len(unit) for unit in units}
    }
    found = []
    for unit in units:
        for update in updates:
            runs = [_run(_Kill(unit, update)) for _ in range(repeats)]
            trace = _trace(runs, fixed_s[len(unit)])
            links = Links.uniform(len(_FORWARD_S), 1e9, 1e-4)
            phases = recovery_phases(_logged(trace, unit), trace, links, unit[0], update)
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
    pairs = [(number, number + 1) for number in range(len(compute) - 1)]
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


def _logged(trace: RecoveryTrace, unit: Sequence[int]) -> RecoveryPlan:
    """All messages logged but those inside the unit."""
    group_of = [n - sum(one <= n for one in unit[1:]) for n in range(len(trace.stages))]
    return RecoveryPlan(
        world_size=trace.world_size,
        planner="by hand",
        stages=tuple(
            StageRecovery(ranks=stage.ranks, strategy="log", group=group)
            for stage, group in zip(trace.stages, group_of, strict=True)
        ),
        logs=tuple(
            MessageLog(source=one.source, target=one.target, tier="memory", bytes_per_step=one.size_bytes)
            for one in trace.messages
            if group_of[one.source] != group_of[one.target]
        ),
        interval_steps=1000,
        mtbf_s=3600.0,
    )
