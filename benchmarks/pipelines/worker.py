"""One rank of the timed pipelines: carries out every case of FOLDER/job.json in turns, computing slept.

worker.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.profile.ending import end_process
from wirewise.runtime.pipeline import Pipeline
from wirewise.runtime.transport import Transport
from wirewise.trials.rank import join_job, prepare_process
from wirewise.trials.windows import alternate


class _Slept(torch.autograd.Function):
    """The identity, which takes time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Stage(nn.Module):
    """A stage whose passes are slept; gradients of its input and of its weights are ready one after the other."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(case["parameters"]))
        self.forward_s, self.weight_s = case["forward_s"], case["weight_s"]
        self.input_s = case["backward_s"] - case["weight_s"]

    def forward(self, x: Tensor) -> Tensor:
        weight = _Slept.apply(self.weight, 0.0, self.weight_s)
        return _Slept.apply(x, self.forward_s, self.input_s) * weight.mean()


def mean_of(output: Tensor, _: Tensor) -> Tensor:
    return output.mean()


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4)


class Own:
    """A case under a plan of stages."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.plan = StagePlan.from_json(json.dumps(case["plan"]))
        # Passes are slept to their ends, whatever the arithmetic of large stages takes.
        quick = case | {"forward_s": 0.0, "backward_s": 0.0, "weight_s": 0.0}
        modules = nn.ModuleList(Stage(quick) for _ in self.plan.stages)
        self.least_s = {
            "F": case["forward_s"],
            "B": case["backward_s"],
            "I": case["backward_s"] - case["weight_s"],
            "W": case["weight_s"],
        }
        self.pipeline = Pipeline(modules, self.plan, loss=mean_of, optimizer=sgd, around=self._paced)
        self.x = torch.ones(self.plan.microbatches, case["values"])

    @contextmanager
    def _paced(self, step: StagePass) -> Iterator[None]:
        end_s = time.perf_counter() + self.least_s[step.kind]
        yield
        time.sleep(max(end_s - time.perf_counter(), 0.0))

    def train(self, updates: int) -> list[float]:
        """When each update was done."""
        batches = [(self.x, self.x)] * updates
        return [time.perf_counter() for _ in self.pipeline.train(batches)]


class Torch:
    """A case under a schedule of torch.distributed.pipelining."""

    def __init__(self, case: dict[str, Any]) -> None:
        from torch.distributed import pipelining

        rank, size = dist.get_rank(), dist.get_world_size()
        self.first, self.last = rank == 0, rank == size - 1
        self.x = torch.ones(case["microbatches"], case["values"])
        stage = pipelining.PipelineStage(Stage(case), rank, size, torch.device("cpu"))
        m = case["microbatches"]
        if case["engine"] == "torch 1F1B":
            self.schedule: Any = pipelining.Schedule1F1B(stage, m, loss_fn=mean_of)
        else:
            self.schedule = pipelining.ScheduleInterleaved1F1B([stage], m, loss_fn=mean_of)

    def train(self, updates: int) -> list[float]:
        """When each update was done; without an optimizer's step, which takes nothing here."""
        ends = []
        for _ in range(updates):
            given = (self.x,) if self.first else ()
            self.schedule.step(*given, **({"target": self.x} if self.last else {}))
            ends.append(time.perf_counter())
        return ends


def measured(transport: Transport, job: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of the updates of each case; those of 2BW without the one that fills the pipeline."""
    cases = job["cases"]
    made: dict[str, Any] = {n: (Own if c["engine"] == "own" else Torch)(c) for n, c in cases.items()}
    found: dict[str, list[float]] = {name: [] for name in cases}
    for turn, name in alternate(list(cases), job["turns"] + 1):
        transport.barrier("the begin of a turn")
        start_s = time.perf_counter()
        streams = cases[name]["engine"] == "own" and made[name].plan.weight_versions == 2
        ends = made[name].train(job["updates"] + 2 * streams)
        begins = [start_s, *ends[:-1]]
        # The first update of a training without flushes fills the pipeline, the last one drains it.
        steps = [end - begin for begin, end in zip(begins, ends, strict=True)][streams : len(ends) - streams]
        together: Callable[[Any], Any] = transport.mean if streams else transport.slowest
        # The first turn opens connections.
        found[name] += together(steps).tolist() if turn else []
    return found


def main() -> None:
    prepare_process()
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    with join_job(120.0) as transport:
        found = measured(transport, job)
        if transport.rank == 0:
            (folder / "result.json").write_text(json.dumps(found))
    end_process()


if __name__ == "__main__":
    main()
