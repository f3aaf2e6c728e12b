"""Rank of a parallel run: `-m wirewise_papers.rhino.worker FOLDER`.

It trains the same model from the same weights by every method, interleaved, with operators paced to the job's
accelerator. The steps of a turn are timed, except the first; losses of the first steps are compared with those of one
device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from wirewise.lab.accelerator import PacedOperators
from wirewise.lab.counters import interface_bytes
from wirewise.plans import ParallelPlan
from wirewise.runtime.parallel import parallelize
from wirewise.runtime.parallel.rebuilt import rebuild_step
from wirewise.trace.operator_graph import read_operator_graph
from wirewise.trials.rank import Rank, main
from wirewise.trials.windows import alternate
from wirewise_papers.parallel_models import MODELS
from wirewise_papers.rhino.deployed import DeployedMethod
from wirewise_papers.rhino.job import RhinoJob
from wirewise_papers.rhino.records import ParallelTimes
from wirewise_papers.rhino.ways import TrainingMethod, ddp, fsdp, manual_tensor_parallel, parallel_method

__all__ = ["COMPARED", "GRAPH", "one_device", "work"]

COMPARED = 5
"""Number of steps whose losses are compared."""
GRAPH = "graph-{}.json"
"""File of the graph of a microbatch, by the number of microbatches."""
_WAYS: dict[str, Callable[..., TrainingMethod]] = {"ddp": ddp, "fsdp": fsdp, "tensor": manual_tensor_parallel}


def work(rank: Rank[RhinoJob]) -> None:
    """Train by all methods and measure."""
    job = rank.job
    ways = {name: _planned(rank, plan) for name, plan in job.plans.items()}
    ways |= {name: _way(job, name) for name in job.ways}
    rank.log(f"{', '.join(ways)} are built")
    found = {name: ParallelTimes(losses=[]) for name in ways}
    for _, name in alternate(list(ways), job.wish.turns):
        way, own = ways[name], found[name]
        with PacedOperators(job.wish.device):
            for step in range(1 + job.wish.steps):
                if step:
                    _timed(rank, way, own)
                else:
                    way.step()
                if len(own.losses) < COMPARED:
                    own.losses.append(way.loss())
        rank.log(f"{name}: {own.steps_s[-1]:.3f} s a step")
    for name, way in ways.items():
        found[name].losses += _losses(way, COMPARED - len(found[name].losses))
    rank.outcome(found)


def _timed(rank: Rank[RhinoJob], way: TrainingMethod, found: ParallelTimes) -> None:
    transport = rank.transport
    transport.barrier("the start of a step")
    before, start_s = interface_bytes(), time.perf_counter()
    way.step()
    seconds = time.perf_counter() - start_s
    passed = interface_bytes()
    sent = 0 if before is None or passed is None else (passed - before).tx_bytes
    slowest, total = float(transport.slowest(seconds)), float(transport.total(float(sent)))
    found.steps_s.append(slowest)
    if total:
        found.sent_bytes.append(round(total))


def _losses(way: TrainingMethod, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        way.step()
        found.append(way.loss())
    return found


def _example(job: RhinoJob) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MODELS[job.wish.model](**job.arguments())


def _planned(rank: Rank[RhinoJob], plan: ParallelPlan) -> TrainingMethod:
    model, inputs = _example(rank.job)

    def step(microbatches: int) -> Any:
        return rebuild_step(read_operator_graph(rank.folder / GRAPH.format(microbatches)))

    part = step(plan.microbatches) if plan.microbatches > 1 else None
    parallel = parallelize(model, plan, step(1), microbatch=part, timeout_s=rank.job.timeout_s)
    return parallel_method(parallel, inputs, rank.job.wish.learning_rate)


def _way(job: RhinoJob, name: str) -> TrainingMethod:
    model, inputs = _example(job)
    if name == "tag":
        assert job.deployment is not None
        return DeployedMethod(job.wish, model, inputs, job.deployment, job.timeout_s)
    return _WAYS[name](model, inputs, job.wish.learning_rate)


def one_device(job: RhinoJob) -> list[float]:
    """Losses of the same steps on one device."""
    model, inputs = _example(job)
    return _losses(parallel_method(model, inputs, job.wish.learning_rate), COMPARED)


if __name__ == "__main__":
    main(RhinoJob, work, sys.argv[1])
