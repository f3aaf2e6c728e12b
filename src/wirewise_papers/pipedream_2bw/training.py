"""Training in one mode on one rank; each pass sleeps until the emulated accelerator would be done."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from wirewise.plans.timetables import StagePass
from wirewise.results import MeasuredPass
from wirewise.runtime.pipeline import DelayCorrection, Pipeline
from wirewise.trials.rank import Rank
from wirewise_papers.pipedream_2bw.job import PipelineJob, plan_of, rate_factor
from wirewise_papers.pipedream_2bw.records import PipelineMeasures
from wirewise_papers.text_model import batches, language_model, loss

__all__ = ["SavedBytes", "Training", "pace_pass"]

_COPIES: dict[DelayCorrection, int] = {"none": 0, "error_feedback": 1, "nesterov": 2}
"""Further copies of the weights that a correction keeps."""
_KINDS = "FBIW"
_SHOWN = 3
"""Updates whose passes are kept."""


class SavedBytes:
    """Bytes that autograd saves between forward and backward passes: current and peak."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def watch(self) -> AbstractContextManager[Any]:
        """Context manager that counts saved tensors."""
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


def pace_pass(job: PipelineJob, saved: SavedBytes) -> Any:
    """Context manager that stretches a pass to its time on the accelerator."""
    least_s = {"F": job.forward_ms, "B": job.backward_ms, "I": job.backward_ms / 2, "W": job.backward_ms / 2}

    @contextmanager
    def around(step: StagePass) -> Iterator[None]:
        end_s = time.perf_counter() + 1e-3 * least_s[step.kind]
        with saved.watch():
            yield
        time.sleep(max(end_s - time.perf_counter(), 0.0))

    return around


def _optimizers(job: PipelineJob, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Optimizers of the job; Muon for the matrices, AdamW for all else."""
    if job.optimizer == "sgd":
        return [torch.optim.SGD(parameters, lr=job.learning_rate, momentum=0.9)]
    matrices = [p for p in parameters if p.dim() == 2 and job.optimizer == "muon"]
    others = [p for p in parameters if p.dim() != 2 or job.optimizer != "muon"]
    muon = [torch.optim.Muon(matrices, lr=job.learning_rate)] if matrices else []
    return [*muon, torch.optim.AdamW(others, lr=job.learning_rate)]


class Training:
    """Training in one mode on one rank (`wirewise_papers.interleaved.Subject`)."""

    def __init__(self, rank: Rank[PipelineJob], name: str) -> None:
        self.job, self.transport = rank.job, rank.transport
        self.saved = SavedBytes()
        plan = plan_of(self.job, name)
        corrected = plan.weight_versions > 1 and name != "2bw-plain"
        self.correction: DelayCorrection = self.job.delay_correction if corrected else "none"
        self.optimizers: list[torch.optim.Optimizer] = []
        self.pipeline = Pipeline(
            language_model(self.job),
            plan,
            loss=loss,
            optimizer=self._make_optimizers,
            schedule=lambda one: LambdaLR(one, partial(rate_factor, self.job)),
            clip=self.job.clip or None,
            delay_correction=self.correction,
            seed=self.job.seed,
            recorded=True,
            around=pace_pass(self.job, self.saved),
            timeout_s=self.job.timeout_s,
        )
        self.idle: list[float] = []
        """Fraction of each turn in which this rank computed nothing."""
        self._first = 0

    def _make_optimizers(self, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        self.optimizers = _optimizers(self.job, parameters)
        return self.optimizers

    def train(self, steps: int) -> Iterator[float]:
        """Train n updates; the first one fills the pipeline and is excluded from step and idle times."""
        pipeline = self.pipeline
        pipeline.records.clear()
        self._first = pipeline.update
        ends = []
        for one in pipeline.train(batches(self.job, pipeline.replica, pipeline.update, steps)):
            ends.append(time.perf_counter())
            yield one.loss or 0.0
        within = [r for r in pipeline.records if ends[0] <= r.start_s and r.end_s <= ends[-1]]
        busy_s = sum(record.end_s - record.start_s for record in within)
        self.idle.append(1.0 - busy_s / (ends[-1] - ends[0]))

    def _passes(self) -> list[MeasuredPass]:
        """Passes over the first updates of the last turn; all ranks of a lab are on one machine and read one clock."""
        plan = self.pipeline.plan
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
        everyone = self.transport.all_gather(torch.tensor(own, dtype=torch.float64), "executed passes")
        rows = [
            row
            for rank, passes in enumerate(everyone)
            if plan.place_of(rank)[1] == 0
            for row in passes.tolist()
        ]
        begin_s = min(row[4] for row in rows)
        return [
            MeasuredPass(
                _KINDS[int(kind)], int(stage), int(update), int(microbatch), a - begin_s, b - begin_s
            )
            for kind, stage, microbatch, update, a, b in rows
        ]

    def outcome(self) -> PipelineMeasures:
        """Idle time, memory and passes of all ranks."""
        weights = sum(p.nbytes for p in self.pipeline.weights.named.values())
        state = sum(
            value.nbytes
            for one in self.optimizers
            for own in one.state.values()
            for value in own.values()
            if isinstance(value, Tensor)
        )
        # Versions, gradients, and the state of the correction.
        copies = self.pipeline.weights.versions + 1 + _COPIES[self.correction]
        return PipelineMeasures(
            bubble=float(self.transport.mean(statistics.fmean(self.idle))),
            peak_bytes=int(self.transport.slowest(weights * copies + state + self.saved.most)),
            passes=self._passes(),
        )

    def close(self) -> None:
        """End the pipeline."""
        self.pipeline.close()
