"""One rank that trains until it has planned bits, then times the planned rounds alone: `plan_worker.py JOB.json`.

A round is one exchange of one layer in one direction, all ranks starting together and nothing in between, so
that it holds what the planner predicts without computing to hide it: packing, the wire and unpacking. Rank 0
writes `rounds.json` next to the job.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

from wirewise import graph
from wirewise.profile.ending import end_process
from wirewise.runtime import full_graph
from wirewise.trials.rank import join_job, prepare_process
from wirewise_papers.adaqp.job import FullGraphJob

_EPOCH = 2000
"""First number of the timed rounds, far from those of training, whose tags they must not share."""


class Rounds(msgspec.Struct, kw_only=True):
    """What the ranks measured."""

    mean_bits: dict[str, float] = {}
    """Over all exchanges, by channel: "0-3"."""
    predicted_s: dict[str, float] = {}
    measured_s: dict[str, list[float]] = {}
    """Seconds of each round on the slowest rank."""
    size_bytes: dict[str, int] = {}
    s_per_byte: list[list[float]] = []


def time_rounds(trainer: full_graph.Trainer, repeats: int, found: Rounds) -> None:
    """Rounds of all exchanges in turn."""
    transport, part = trainer.transport, trainer.tensors.part
    for repeat in range(repeats):
        for name, lane in trainer.exchange.training_lanes().items():
            rows = part.num_own if lane.route.owner_sends else part.num_halo
            x = torch.randn(rows, lane.width)
            out = torch.empty(max(part.num_own, part.num_halo), lane.width)
            transport.all_reduce(torch.zeros(1), "start of a round")
            start = time.perf_counter()
            lane.post(x, _EPOCH + repeat, trace=False)
            for received in lane.collect():
                count = lane.route.receive_counts[received.peer]
                received.write(out[:count])
            seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            slowest = float(torch.stack(transport.all_gather(seconds, "round")).max())
            if repeat:
                found.measured_s.setdefault(name, []).append(slowest)
            lane.drain()


def channel_bits(trainer: full_graph.Trainer) -> dict[str, float]:
    bits: dict[str, list[np.ndarray]] = {}
    for channel in trainer.bits.current_plan().channels:
        if len(channel.array):
            bits.setdefault(f"{channel.sender}-{channel.receiver}", []).append(channel.array)
    return {name: float(np.concatenate(tables).mean()) for name, tables in bits.items()}


def plan_and_time(job: FullGraphJob, folder: Path, transport, epochs: int, repeats: int) -> Rounds:
    part = graph.load_part(folder / "parts", transport.rank, transport.world_size)
    torch.manual_seed(job.seed)
    model = full_graph.FullGraphNet(
        part.num_features, job.hidden, part.num_classes, layers=job.layers, convolution=job.model
    )
    options = full_graph.TrainerOptions(seed=job.seed, evaluate_every=0, replan_every=job.replan_every)
    tensors = full_graph.PartTensors(part)
    trainer = full_graph.Trainer(
        tensors, model, transport, full_graph.mode(job.modes[0], gradient_bits=job.gradient_bits), options
    )
    for _ in range(epochs):
        trainer.train_epoch()
    decision, costs = trainer.bits.decision, trainer.bits.costs
    found = Rounds(mean_bits=channel_bits(trainer))
    if decision is not None and costs is not None:
        found.predicted_s = dict(decision.exposed_s)
        found.size_bytes = {name: int(size.sum()) for name, size in decision.size_bytes.items()}
        found.s_per_byte = costs.links.pairs.s_per_byte.tolist()
    time_rounds(trainer, repeats + 1, found)
    trainer.close()
    return found


def main(path: str, epochs: int, repeats: int) -> None:
    folder = Path(path).parent
    job = msgspec.json.decode(Path(path).read_bytes(), type=FullGraphJob)
    prepare_process()
    with join_job() as transport:
        found = plan_and_time(job, folder, transport, epochs, repeats)
        if transport.rank == 0:
            (folder / "rounds.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    end_process()
