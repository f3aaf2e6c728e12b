"""One rank of a run of pipelines: `-m wirewise.recipes.pipedream_2bw_worker FOLDER`.

It reads FOLDER/job.json, trains the same model from the same weights in every mode, in turns, and rank 0 writes what
all ranks measured. Numbers are computed; then a pass sleeps until it has taken as long as the job says, as on an
accelerator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from wirewise.plans.timetables import StagePass
from wirewise.recipes.pipedream_2bw_job import PipelineJob, plan_of, rate_factor
from wirewise.recipes.text_model import batches, language_model, loss
from wirewise.results import MeasuredPass, PipelineTimes
from wirewise.runtime.pipeline import DelayCorrection, Pipeline
from wirewise.trials.rank import Rank, main
from wirewise.trials.windows import turns

__all__ = ["SavedBytes", "paced", "work"]

_COPIES: dict[DelayCorrection, int] = {"none": 0, "error_feedback": 1, "nesterov": 2}
"""Further copies of the weights that a correction keeps."""
_KINDS = "FBIW"
_SHOWN = 3
"""Updates whose passes are kept."""


class SavedBytes:
    """Bytes that autograd keeps between forward and backward passes, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def watch(self) -> AbstractContextManager[Any]:
        """Count what is saved within."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: Tensor) -> _Saved:
        return _Saved(self, tensor)


class _Saved:
    """A tensor that a graph holds; parameters are not counted, as they are there anyway."""

    def __init__(self, counter: SavedBytes, tensor: Tensor) -> None:
        # A view of a parameter, such as its transpose, is none of its own.
        base = tensor if tensor._base is None else tensor._base
        self.tensor, self.bytes = tensor, 0 if isinstance(base, nn.Parameter) else tensor.nbytes
        self._counter = counter
        counter.now += self.bytes
        counter.most = max(counter.most, counter.now)

    def __del__(self) -> None:
        self._counter.now -= self.bytes


def _unpack(saved: _Saved) -> Tensor:
    return saved.tensor


def paced(job: PipelineJob, saved: SavedBytes) -> Any:
    """Context of a pass that ends when the accelerator would be done."""
    least_s = {"F": job.forward_ms, "B": job.backward_ms, "I": job.backward_ms / 2, "W": job.backward_ms / 2}

    @contextmanager
    def around(step: StagePass) -> Iterator[None]:
        end_s = time.perf_counter() + 1e-3 * least_s[step.kind]
        with saved.watch():
            yield
        time.sleep(max(end_s - time.perf_counter(), 0.0))

    return around


def _optimizers(job: PipelineJob) -> Any:
    """Makes the optimizers of the job; Muon for the matrices, AdamW for all else."""

    def made(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        if job.optimizer == "sgd":
            return [torch.optim.SGD(parameters, lr=job.learning_rate, momentum=0.9)]
        matrices = [p for p in parameters if p.dim() == 2 and job.optimizer == "muon"]
        others = [p for p in parameters if p.dim() != 2 or job.optimizer != "muon"]
        muon = [torch.optim.Muon(matrices, lr=job.learning_rate)] if matrices else []
        return [*muon, torch.optim.AdamW(others, lr=job.learning_rate)]

    return made


class _Mode:
    """A model that is trained in one mode, and what was measured of it."""

    def __init__(self, rank: Rank[PipelineJob], name: str) -> None:
        self.job, self.rank = rank.job, rank
        self.saved = SavedBytes()
        plan = plan_of(self.job, name)
        corrected = plan.weight_versions > 1 and name != "2bw-plain"
        self.correction: DelayCorrection = self.job.delay_correction if corrected else "none"
        self.optimizers: list[torch.optim.Optimizer] = []
        self.pipeline = Pipeline(
            language_model(self.job),
            plan,
            loss=loss,
            optimizer=self._made,
            schedule=lambda one: LambdaLR(one, partial(rate_factor, self.job)),
            clip=self.job.clip or None,
            delay_correction=self.correction,
            seed=self.job.seed,
            recorded=True,
            around=paced(self.job, self.saved),
            timeout_s=self.job.timeout_s,
        )
        self.step_s: list[float] = []
        self.ends_s: list[float] = []
        """Seconds of training until each update was done."""
        self.losses: list[float] = []
        self.idle: list[float] = []
        self._elapsed_s, self._first = 0.0, 0

    def _made(self, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        self.optimizers = _optimizers(self.job)(parameters)
        return self.optimizers

    def train(self, count: int) -> None:
        """Train some updates; the first of them fills the pipeline and does not count as a step."""
        pipeline = self.pipeline
        pipeline.records.clear()
        self._first = pipeline.update
        feed = batches(self.job, pipeline.replica, pipeline.update, count)
        self.rank.transport.barrier("the begin of a turn")
        start_s = time.perf_counter()
        ends, losses = [], []
        for one in pipeline.train(feed):
            ends.append(time.perf_counter())
            losses.append(one.loss or 0.0)
        # The result is there once the optimizer has stepped.
        last_s = time.perf_counter()
        transport = self.rank.transport
        steps = [later - earlier for earlier, later in pairwise(ends)]
        self.step_s += transport.mean(steps).tolist()
        done = [end - start_s for end in ends[:-1]] + [last_s - start_s]
        self.ends_s += [self._elapsed_s + end for end in transport.slowest(done).tolist()]
        self._elapsed_s = self.ends_s[-1]
        self.losses += (transport.total(losses) / self.job.replicas).tolist()
        within = [r for r in pipeline.records if ends[0] <= r.start_s and r.end_s <= ends[-1]]
        busy_s = sum(record.end_s - record.start_s for record in within)
        self.idle.append(1.0 - float(transport.mean(busy_s / (ends[-1] - ends[0]))))

    def _passes(self) -> list[MeasuredPass]:
        """The first updates of the last turn; all ranks of a lab are on one machine, so they read one clock."""
        plan, transport = self.pipeline.plan, self.rank.transport
        own = [
            (
                _KINDS.index(one.step.kind),
                *one.step[2:],
                one.step.update - self._first,
                one.start_s,
                one.end_s,
            )
            for one in self.pipeline.records
            if one.step.update < self._first + _SHOWN
        ]
        everyone = transport.all_gather(
            torch.tensor(own, dtype=torch.float64), "passes as they were carried out"
        )
        rows = [
            row
            for rank, found in enumerate(everyone)
            if plan.place_of(rank)[1] == 0
            for row in found.tolist()
        ]
        begin_s = min(row[4] for row in rows)
        return [
            MeasuredPass(
                _KINDS[int(kind)], int(stage), int(update), int(microbatch), a - begin_s, b - begin_s
            )
            for kind, stage, microbatch, update, a, b in rows
        ]

    def measured(self) -> PipelineTimes:
        """What all ranks measured."""
        weights = sum(p.nbytes for p in self.pipeline.weights.named.values())
        state = sum(
            value.nbytes
            for one in self.optimizers
            for own in one.state.values()
            for value in own.values()
            if isinstance(value, Tensor)
        )
        # Versions, gradients, and what the correction remembers.
        copies = self.pipeline.weights.versions + 1 + _COPIES[self.correction]
        held = weights * copies + state + self.saved.most
        return PipelineTimes(
            steps_s=self.step_s,
            ends_s=self.ends_s,
            losses=self.losses,
            bubble=sum(self.idle) / len(self.idle),
            peak_bytes=int(self.rank.transport.slowest(held)),
            passes=self._passes(),
        )


def work(rank: Rank[PipelineJob]) -> None:
    """Train every mode and write what it took."""
    job = rank.job
    modes = {name: _Mode(rank, name) for name in job.modes}
    sizes = [job.updates * (t + 1) // job.turns - job.updates * t // job.turns for t in range(job.turns)]
    for number, name in turns(list(job.modes), job.turns):
        modes[name].train(sizes[number])
        took = sorted(modes[name].step_s)
        rank.log(f"{name}: {1e3 * took[len(took) // 2]:.0f} ms an update, loss {modes[name].losses[-1]:.3f}")
    rank.outcome({name: mode.measured() for name, mode in modes.items()})
    for mode in modes.values():
        mode.pipeline.close()


if __name__ == "__main__":
    main(PipelineJob, work, sys.argv[1])
