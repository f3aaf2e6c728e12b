"""Job types of `wirewise run tapfinger`; each rank of a job calls `train`.

Three kinds: a language model that every rank has whole (DistributedDataParallel), the same in two stages of a pipeline
with replicas, and a graph in as many parts as there are ranks. Numbers, messages and states are real. A step takes at
least the time of an accelerator, which is slept; all other work of the ranks runs on the job's CPUs. The batch of a
step is independent of the number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wirewise import graph
from wirewise import options as opt
from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.runtime import full_graph
from wirewise.runtime.jobs.training import ResumableTraining, train_resumably
from wirewise.runtime.pipeline import Pipeline
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import Tree
from wirewise.trials.start import JOB
from wirewise_papers.pipedream_2bw.job import PipelineJob, module_names
from wirewise_papers.text_model import batches, language_model, loss

__all__ = ["KINDS", "ClusterJob", "train", "write_parts"]

_STAGES = 2
"""Stages of the pipeline, whatever the number of ranks; further ranks are replicas."""


class ClusterJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the ranks of a job."""

    kind: Annotated[str, opt.about("Kind of the job.")]
    steps: opt.Count
    accelerator_s: Annotated[float, opt.about("Seconds that one accelerator needs for a step.", ge=0)] = 0.1
    every_s: Annotated[opt.Positive, opt.about("Seconds between two saved states.")] = 5.0
    parts: Annotated[str, opt.about("Folder with the parts of the graph, for each number of ranks.")] = ""
    seed: opt.Seed = 0
    timeout_s: opt.Timeout = 30.0


def train(folder: Path) -> None:
    """Train the job of a folder as one of its ranks, until it ends or is requested to stop."""
    job = decode_json((folder / JOB).read_bytes(), ClusterJob)
    train_resumably(
        partial(KINDS[job.kind], job), folder, steps=job.steps, every_s=job.every_s, timeout_s=job.timeout_s
    )


@contextmanager
def _accelerated(seconds: float) -> Iterator[None]:
    """Take at least so long."""
    end_s = time.perf_counter() + seconds
    yield
    time.sleep(max(end_s - time.perf_counter(), 0.0))


def _text_job(job: ClusterJob) -> PipelineJob:
    return PipelineJob(
        hosts=1,
        modes=("flush",),
        width=32,
        blocks=2,
        microbatches=4,
        microbatch_size=4,
        length=32,
        seed=job.seed,
    )


class _Text:
    """Data-parallel: each rank computes its share of the rows.

    Args:
        job: Settings of the job.
        transport: Messages between its ranks.
    """

    parts: Sequence[str] = ("model",)

    def __init__(self, job: ClusterJob, transport: Transport) -> None:
        self._job, self._rank, self._ranks = job, transport.rank, transport.world_size
        self._sizes = _text_job(job)
        self._bare = nn.Sequential(*language_model(self._sizes).modules.values())
        self._model = DistributedDataParallel(self._bare) if self._ranks > 1 else self._bare
        self._optimizer = torch.optim.AdamW(self._bare.parameters(), lr=1e-3)

    def step(self, number: int) -> None:
        """Do a step; the gradient is that of the whole batch."""
        [(x, y)] = batches(self._sizes, 0, number, 1)
        own_x, own_y = (torch.tensor_split(rows, self._ranks)[self._rank] for rows in (x, y))
        share = len(own_x) / len(x)
        self._optimizer.zero_grad()
        with _accelerated(self._job.accelerator_s * share):
            # The mean over ranks that DistributedDataParallel takes becomes that over rows.
            (loss(self._model(own_x), own_y) * (share * self._ranks)).backward()
        self._optimizer.step()

    def state(self) -> Mapping[str, Tree]:
        """Weights and optimizer, which all ranks have, by rank 0."""
        if self._rank:
            return {}
        return {"model": {"model": self._bare.state_dict(), "optimizer": self._optimizer.state_dict()}}

    def load(self, parts: Mapping[str, Tree]) -> None:
        """Take over weights and optimizer."""
        self._bare.load_state_dict(parts["model"]["model"])
        self._optimizer.load_state_dict(parts["model"]["optimizer"])

    def close(self) -> None:
        """Nothing is held."""


class _Stages:
    """A pipeline of two stages, with as many replicas as there are pairs of ranks.

    Args:
        job: Settings of the job.
        transport: Messages between its ranks.

    Raises:
        InputError: The ranks are not a multiple of the stages that shares the microbatches evenly.
    """

    parts: Sequence[str] = tuple(f"stage{number}" for number in range(_STAGES))

    def __init__(self, job: ClusterJob, transport: Transport) -> None:
        sizes = _text_job(job)
        replicas = transport.world_size // _STAGES
        if replicas * _STAGES != transport.world_size or sizes.microbatches % replicas:
            raise InputError(
                f"got {transport.world_size} ranks for {_STAGES} stages, {sizes.microbatches} microbatches; expected "
                "as many ranks for each stage, and as many microbatches for each rank"
            )
        self._sizes, self._replicas = sizes, replicas
        self._own = sizes.microbatches // replicas
        pass_s = job.accelerator_s / sizes.microbatches / _STAGES / 2
        self._pipeline = Pipeline(
            language_model(sizes),
            StagePlan.from_cuts(
                module_names(sizes.blocks),
                [2],
                style="1f1b",
                microbatches=self._own,
                microbatch_size=sizes.microbatch_size,
                replicas=replicas,
            ),
            loss=loss,
            optimizer=partial(torch.optim.AdamW, lr=1e-3),
            process_group=transport,
            seed=job.seed,
            around=lambda _: _accelerated(pass_s),
            timeout_s=job.timeout_s,
        )

    def step(self, number: int) -> None:
        """Do an update with this replica's share of the batch."""
        [(x, y)] = batches(self._sizes, 0, number, 1)
        rows = self._own * self._sizes.microbatch_size
        own = slice(self._pipeline.replica * rows, (self._pipeline.replica + 1) * rows)
        for _ in self._pipeline.train([(x[own], y[own])]):
            pass

    def state(self) -> Mapping[str, Tree]:
        """This rank's stage, by the first replica."""
        if self._pipeline.replica:
            return {}
        return {self.parts[self._pipeline.position]: self._pipeline.state_dict()}

    def load(self, parts: Mapping[str, Tree]) -> None:
        """Take over this rank's stage, which is the same under any number of replicas."""
        own = parts[self.parts[self._pipeline.position]]
        self._pipeline.load_state_dict(own | {"plan": self._pipeline.plan.to_json()})

    def close(self) -> None:
        """End the pipeline's threads."""
        self._pipeline.close()


class _Graph:
    """A graph in as many parts as there are ranks.

    Args:
        job: Settings of the job.
        transport: Messages between its ranks.
    """

    parts: Sequence[str] = ("model",)

    def __init__(self, job: ClusterJob, transport: Transport) -> None:
        part = graph.load_part(Path(job.parts) / str(transport.world_size), transport.rank)
        torch.manual_seed(job.seed)
        model = full_graph.FullGraphNet(part.num_features, 32, part.num_classes, dropout=0.0)
        options = full_graph.TrainerOptions(seed=job.seed, evaluate_every=0)
        self._trainer = full_graph.Trainer(
            full_graph.PartTensors(part), model, transport, full_graph.mode("fp32"), options
        )
        self._share_s = job.accelerator_s / transport.world_size

    def step(self, number: int) -> None:
        """Do an epoch."""
        self._trainer.epoch = number
        with _accelerated(self._share_s):
            self._trainer.train_epoch()

    def state(self) -> Mapping[str, Tree]:
        """Weights and optimizer, which all ranks have, by rank 0."""
        if self._trainer.transport.rank:
            return {}
        model, optimizer = self._trainer.model.state_dict(), self._trainer.optimizer.state_dict()
        return {"model": {"model": model, "optimizer": optimizer}}

    def load(self, parts: Mapping[str, Tree]) -> None:
        """Take over weights and optimizer."""
        self._trainer.model.load_state_dict(parts["model"]["model"])
        self._trainer.optimizer.load_state_dict(parts["model"]["optimizer"])

    def close(self) -> None:
        """End the trainer's threads."""
        self._trainer.close()


KINDS: dict[str, Callable[[ClusterJob, Transport], ResumableTraining]] = {
    "text": _Text,
    "pipeline": _Stages,
    "graph": _Graph,
}
"""Training of each kind of job."""


def write_parts(folder: Path, maximum: int, *, seed: int = 0, nodes: int = 800) -> Path:
    """Write the graph of the kind "graph" in 1, 2 and up to `maximum` parts, each in a numbered folder.

    Args:
        folder: Folder to write to.
        maximum: Maximum number of ranks of a job.
        seed: Seed of graph and parts.
        nodes: Number of nodes of the graph.
    """
    data: Any = graph.block_model(graph.BlockModel(nodes=nodes, classes=4, features=16, seed=seed))
    for parts in range(1, maximum + 1):
        graph.save_parts(data, graph.partition(data, parts, seed=seed), folder / str(parts))
    return folder
