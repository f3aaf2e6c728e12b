"""Pipelines and full-graph trainings of `wirewise run swift`: protected under agents, or with checkpoints only.

    torchrun --max-restarts 100 ... -m wirewise_papers.swift.jobs FOLDER

FOLDER/script.json describes the training, as for `script`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise import graph
from wirewise.cost import ExchangeCosts, LinkCost, Links
from wirewise.errors import InputError
from wirewise.files import write_json
from wirewise.plans import StagePlan
from wirewise.runtime import full_graph, recovery
from wirewise.runtime.pipeline import LayerGraph, Pipeline
from wirewise.runtime.transport import Transport, transport_of
from wirewise.runtime.trees import Tree, digest_of, pack
from wirewise_papers.swift.job import MICROBATCHES
from wirewise_papers.swift.kills import note_step
from wirewise_papers.swift.records import FinalState
from wirewise_papers.swift.script import CLASSES, FEATURES, ROWS, dataset, optimizer_of, start

__all__ = ["protected"]

Settings = dict[str, Any]
_NODES, _HIDDEN = 6000, 64
_LOG_STEPS = 20
"""Updates from one state on disk to the next, of a pipeline whose messages are logged."""


def protected(folder: Path, settings: Settings) -> None:
    """Train as a rank or a spare of an agent, with recovery from failures of peers."""
    train = {"pipeline": _protected_pipeline, "full-graph": _protected_epochs}[settings["job"]]
    train(folder, settings)


def main(folder: Path) -> None:
    """Train as a rank of torchrun, from the newest checkpoint that all ranks have."""
    settings = start(folder)
    transport = transport_of(timeout_s=settings["timeout_s"])
    job = {"pipeline": _plain_pipeline, "full-graph": _plain_epochs}[settings["job"]](transport, settings)
    states = recovery.CheckpointFolder(folder / "states", transport.rank)
    with closing(states):
        try:
            job.load(states.load(transport)[1])
        except InputError:
            # Nobody has any yet.
            transport.barrier("the start")
        for step in job.train():
            note_step(folder, transport.rank, step)
            if settings["every"] and step % settings["every"] == 0:
                start_s = time.monotonic()
                states.save(step, job.state())
                states.wait()
                states.discard(step)
                if transport.rank == 0:
                    with (folder / "checkpoints").open("a") as file:
                        file.write(f"{step} {time.monotonic() - start_s:.6f}\n")
    job.close()
    dist.destroy_process_group()


def _finished(folder: Path, rank: int, state: Tree) -> None:
    size = sum(tensor.nbytes for tensor in pack(state)[1])
    write_json(folder / f"final-{rank}.json", FinalState(digest=digest_of(state), bytes=size))


def _pipeline(settings: Settings, transport: Transport, journal: Any = None) -> Pipeline:
    """A stage of two layers on each rank."""
    torch.manual_seed(settings["seed"])
    ranks, width = settings["ranks"], settings["width"]
    layers = [
        nn.Sequential(
            nn.Linear(FEATURES, width), nn.GELU(), nn.Dropout(settings["dropout"]),
            nn.Linear(width, FEATURES if number + 1 < ranks else CLASSES),
        )
        for number in range(ranks)
    ]  # fmt: skip
    plan = StagePlan.from_cuts(
        [str(number) for number in range(ranks)],
        range(1, ranks),
        style="1f1b",
        microbatches=MICROBATCHES,
        microbatch_size=settings["batch_size"] // MICROBATCHES,
    )
    return Pipeline(
        LayerGraph(layers), plan, loss=nn.functional.cross_entropy, seed=settings["seed"], journal=journal,
        optimizer=lambda parameters: optimizer_of(settings, parameters), process_group=transport,
        timeout_s=settings["timeout_s"],
    )  # fmt: skip


def _batches(settings: Settings) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """Rows of each update, a function of its number."""
    x, y = dataset(settings["seed"]).tensors
    size = settings["batch_size"]

    def of(update: int) -> tuple[Tensor, Tensor]:
        chosen = torch.arange(update * size, (update + 1) * size) % ROWS
        return x[chosen], y[chosen]

    return lambda first: (of(update) for update in range(first, settings["steps"]))


class _Plain(NamedTuple):
    """A training without protection, as a rank sees it."""

    load: Callable[[Tree], object]
    """Takes over what `state` gave."""
    train: Callable[[], Iterator[int]]
    """Trains to the last step; yields the number of steps done after each."""
    state: Callable[[], Tree]
    close: Callable[[], None]


def _plain_pipeline(transport: Transport, settings: Settings) -> _Plain:
    pipeline, batches = _pipeline(settings, transport), _batches(settings)

    def train() -> Iterator[int]:
        for one in pipeline.train(batches(pipeline.update)):
            yield one.update + 1

    return _Plain(pipeline.load_state_dict, train, pipeline.state_dict, pipeline.close)


def _plain_epochs(transport: Transport, settings: Settings) -> _Plain:
    trainer = _trainer(settings, transport, _parts(settings))

    def train() -> Iterator[int]:
        while trainer.epoch < settings["steps"]:
            trainer.train_epoch()
            yield trainer.epoch

    restore, state_of = full_graph.checkpoint.restore, full_graph.checkpoint.state_of
    return _Plain(partial(restore, trainer), train, partial(state_of, trainer), trainer.close)


def _protected_pipeline(folder: Path, settings: Settings) -> None:
    batches = _batches(settings)
    member = recovery.join(settings["timeout_s"])
    log = recovery.SenderLog(folder / "messages", member.rank)
    journal = recovery.RecoveryJournal(
        log,
        [folder / "messages"],
        member.store,
        generation=member.generation.number,
        interrupted=lambda: member.is_over,
    )
    states = recovery.CheckpointFolder(folder / "states", member.rank)
    pipeline = _pipeline(settings, member.transport, journal)
    trained = recovery.train_through_faults(
        pipeline, journal, batches, member, checkpoints=states, every=_LOG_STEPS
    )
    for one in trained:
        note_step(folder, member.rank, one.update + 1)
    state = pipeline.state_dict()
    _finished(folder, member.rank, {name: state[name] for name in ("weights", "optimizers")})
    pipeline.close()
    log.close(remove=True)
    states.close()


def _parts(settings: Settings) -> list[graph.Part]:
    """Parts of a graph of communities; to partition it takes a second, which no recovery should wait for."""
    ranks, seed = settings["ranks"], settings["seed"]
    data = graph.block_model(
        graph.BlockModel(nodes=_NODES, features=64, classes=8, mean_degree=10.0, seed=seed)
    )
    return list(graph.split_graph(data, graph.partition(data, ranks, seed=seed), num_parts=ranks))


def _trainer(settings: Settings, transport: Transport, parts: Sequence[graph.Part]) -> full_graph.Trainer:
    """A graph net on a part of the graph, with messages of few bits (AdaQP)."""
    tensors = full_graph.PartTensors(parts[transport.rank])
    torch.manual_seed(settings["seed"])
    model = full_graph.FullGraphNet(
        tensors.part.num_features, _HIDDEN, tensors.part.num_classes, dropout=settings["dropout"]
    )
    options = full_graph.TrainerOptions(
        learning_rate=settings["learning_rate"], seed=settings["seed"], evaluate_every=0
    )
    trainer = full_graph.Trainer(tensors, model, transport, full_graph.mode("adaqp"), options)
    # Measured ones would give each run bit widths of its own.
    links = Links.of_pairs(LinkCost(latency_s=1e-4, s_per_byte=8e-9), transport.world_size)
    trainer.bits.costs = ExchangeCosts(links=links)
    return trainer


def _protected_epochs(folder: Path, settings: Settings) -> None:
    trainer, parts = None, _parts(settings)
    for trainer in recovery.train_epochs(
        lambda transport: _trainer(settings, transport, parts),
        settings["steps"],
        timeout_s=settings["timeout_s"],
    ):
        rank = trainer.transport.rank
        note_step(folder, rank, trainer.epoch)
        if trainer.epoch == settings["steps"]:
            state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
            _finished(folder, rank, state)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
