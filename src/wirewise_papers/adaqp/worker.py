"""One rank of a full-graph run: `-m wirewise_papers.adaqp.worker FOLDER [START]`.

It reads FOLDER/job.json and its part, and trains every mode alternately. Rank 0 writes the measurements of all ranks:
`events.jsonl` while training and `outcome.json` at the end. START is a JSON object with the epoch of the checkpoint
from which each mode resumes; earlier events are then in `events.jsonl` already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from wirewise import graph, plans
from wirewise.lab import interface_bytes
from wirewise.results import EpochRecord
from wirewise.runtime import full_graph
from wirewise.trials.rank import Rank, main
from wirewise_papers.adaqp import resuming
from wirewise_papers.adaqp.job import Event, FullGraphJob, ModeOutcome, Outcome

__all__ = ["work"]


def work(rank: Rank[FullGraphJob], start: Mapping[str, int]) -> None:
    """Train every mode, from the checkpoints whose epochs `start` gives."""
    job, folder, transport = rank.job, rank.folder, rank.transport
    device = torch.device("cpu")
    if job.device == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    full_graph.warm()
    before = full_graph.resident_bytes()
    part = graph.load_part(folder / "parts", transport.rank, transport.world_size)
    tensors = full_graph.PartTensors(part, device=device)
    trainers = {
        name: full_graph.Trainer(
            tensors,
            _model(job, part).to(device),
            transport,
            full_graph.mode(name, gradient_bits=job.gradient_bits),
            full_graph.TrainerOptions(
                learning_rate=job.learning_rate,
                seed=job.seed,
                evaluate_every=job.evaluate_every,
                replan_every=job.replan_every,
            ),
            member=i,
        )
        for i, name in enumerate(job.modes)
    }
    before_stop = _restore(folder, trainers, start)
    with _Events(rank) as events:
        trained = full_graph.train_interleaved(
            trainers,
            job.epochs,
            turn=job.turn,
            on_epoch=events.write,
            interface_bytes=_host_bytes,
            after_turn=_Checkpoints(job, folder, events, start),
            trained=before_stop,
        )
    peak = [
        int(m)
        for m in transport.all_gather(torch.tensor([full_graph.peak_resident_bytes() - before]), "memory")
    ]
    model = [int(m) for m in transport.all_gather(torch.tensor([_memory_model(job, part)]), "memory")]
    for name, trainer in trainers.items():
        if trainer.mode.traced:
            plan = trainer.bits.current_plan()
            if rank.first:
                plans.save(plan, folder / f"plan-{name}.json")
        trainer.close()
    rank.outcome(
        Outcome(
            modes={
                name: ModeOutcome(
                    records=t.records, kernel_bytes=t.kernel_bytes, accuracy=max(t.best[1], 0.0)
                )
                for name, t in trained.items()
            },
            peak_memory_bytes=peak,
            memory_model_bytes=model,
        )
    )


def _restore(
    folder: Path, trainers: Mapping[str, full_graph.Trainer], start: Mapping[str, int]
) -> dict[str, full_graph.ModeRun]:
    """Put the trainers where their checkpoints are; returns what was measured until then."""
    resumed = {name: epoch for name, epoch in start.items() if epoch}
    records = resuming.records(folder) if resumed else {}
    trained = {}
    for name, epoch in resumed.items():
        extra = full_graph.checkpoint.load(trainers[name], resuming.checkpoint_folder(folder, name), epoch)
        trained[name] = full_graph.ModeRun(records=records[name], kernel_bytes=extra["kernel_bytes"])
    return trained


def _model(job: FullGraphJob, part: graph.Part) -> full_graph.FullGraphNet:
    torch.manual_seed(job.seed)
    return full_graph.FullGraphNet(
        part.num_features,
        job.hidden,
        part.num_classes,
        layers=job.layers,
        convolution=job.model,
        dropout=job.dropout,
        norm=job.norm,
    )


def _memory_model(job: FullGraphJob, part: graph.Part) -> int:
    modes = [full_graph.mode(name, gradient_bits=job.gradient_bits) for name in job.modes]
    return full_graph.memory_terms(
        part, modes, hidden=job.hidden, layers=job.layers, convolution=job.model
    ).total


def _host_bytes() -> int | None:
    """Bytes that this host has sent; the first rank of a host answers for all of them."""
    sent = interface_bytes()
    if sent is None:
        return None
    return sent.tx_bytes if os.environ.get("LOCAL_RANK", "0") == "0" else 0


class _Events:
    """News of finished epochs: rank 0 reports them, and keeps them for a run that goes on from a checkpoint."""

    def __init__(self, rank: Rank[FullGraphJob]) -> None:
        self._rank = rank
        self._file: Any = (rank.folder / "events.jsonl").open("ab") if rank.first else None

    def __enter__(self) -> _Events:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, mode: str, record: EpochRecord) -> None:
        event = Event(mode=mode, record=record)
        if self._file is not None:
            self._file.write(msgspec.json.encode(event) + b"\n")
            self._file.flush()
        self._rank.report(event)

    def sync(self) -> None:
        """Return when all events are on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())


class _Checkpoints:
    """Saves a mode after a turn, when enough epochs have passed since its last checkpoint, and at its end."""

    def __init__(self, job: FullGraphJob, folder: Path, events: _Events, start: Mapping[str, int]) -> None:
        self._job, self._folder, self._events = job, folder, events
        self._saved = {mode: start.get(mode, 0) for mode in job.modes}

    def __call__(self, mode: str, trainer: full_graph.Trainer, trained: full_graph.ModeRun) -> None:
        every, passed = self._job.checkpoint_every, trainer.epoch - self._saved[mode]
        if not every or (passed < every and trainer.epoch < self._job.epochs):
            return
        # A checkpoint is of no use without the events of its epochs.
        self._events.sync()
        folder = resuming.checkpoint_folder(self._folder, mode)
        full_graph.checkpoint.save(trainer, folder, extra={"kernel_bytes": trained.kernel_bytes})
        full_graph.checkpoint.prune(trainer, folder)
        self._saved[mode] = trainer.epoch


if __name__ == "__main__":
    main(
        FullGraphJob,
        partial(work, start=msgspec.json.decode(sys.argv[2] if sys.argv[2:] else "{}", type=dict[str, int])),
        sys.argv[1],
        backend=lambda job: "nccl" if job.device == "cuda" else "gloo",
    )
