"""One rank of data-parallel training under a plan of buckets: `gradients_worker.py FOLDER`.

It reads FOLDER/job.json, measures all-reduces alone, and trains models whose computing is slept, in turns; rank 0
writes FOLDER/result.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from wirewise.cost.gradients import GradientCosts
from wirewise.lab.replayed import ReplayedModel
from wirewise.plans import FusionPlan
from wirewise.profile.ending import end_process
from wirewise.profile.gradients import measure_costs
from wirewise.runtime.data_parallel import parallel
from wirewise.runtime.transport import Transport
from wirewise.trace.gradients import GradientTrace
from wirewise.trials.rank import join_job, prepare_process
from wirewise.trials.windows import alternate

SIZES = 4
"""Numbers of elements that launches are measured with, up to those of the largest bucket."""


class StepsJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to train."""

    plan: FusionPlan
    traces: dict[str, GradientTrace]
    """Gradients by the name of the job, all under the plan."""
    forward_share: float
    steps: int
    """Steps of a turn, after one that does not count."""
    turns: int


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    costs: GradientCosts
    """All-reduces alone, before any training."""
    seconds: dict[str, list[float]]
    """Seconds of each step on the slowest rank, by the name of the job."""
    busy: dict[str, float]
    """Processor seconds of all ranks over the seconds of the steps, by the name of the job."""


def stepper(job: StepsJob, trace: GradientTrace, transport: Transport) -> Callable[[], float]:
    """Carries out a step and returns its seconds on this rank."""
    model = ReplayedModel(trace, forward_share=job.forward_share, seed=transport.rank)
    # What an accelerator's optimizer takes is slept with the forward pass; this one waits for the gradients.
    optimizer = torch.optim.SGD([min(model.parameters(), key=torch.numel)], lr=0.0)
    wrapped = parallel(model, job.plan, optimizer, transport)
    x = torch.ones(1, requires_grad=True)

    def step() -> float:
        start_s = time.perf_counter()
        wrapped(x).sum().backward()
        optimizer.step()
        model.zero_grad()
        return time.perf_counter() - start_s

    return step


def work(job: StepsJob, transport: Transport) -> Steps:
    """Measure costs and steps, on all ranks."""
    most = max(bucket.size_bytes for bucket in job.plan.buckets) // 4
    costs = measure_costs(transport, (), sizes=np.geomspace(64, most, SIZES).astype(int).tolist())
    steps = {name: stepper(job, trace, transport) for name, trace in job.traces.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    processor_s = dict.fromkeys(steps, 0.0)
    for _, name in alternate(list(steps), job.turns):
        transport.barrier("the begin of a turn")
        steps[name]()
        before_s = time.process_time()
        seconds[name] += [steps[name]() for _ in range(job.steps)]
        processor_s[name] += time.process_time() - before_s
    slowest = {name: transport.slowest(own).tolist() for name, own in seconds.items()}
    every_s = {
        name: float(transport.mean([own])[0]) * transport.world_size for name, own in processor_s.items()
    }
    busy = {name: own / sum(slowest[name]) for name, own in every_s.items()}
    return Steps(costs=costs, seconds=slowest, busy=busy)


def main(path: str) -> None:
    prepare_process()
    folder = Path(path)
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=StepsJob)
    with join_job() as transport:
        found = work(job, transport)
        if transport.rank == 0:
            (folder / "result.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(sys.argv[1])
    end_process()
