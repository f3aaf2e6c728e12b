"""One machine that fetches the rows of mini-batches: `batches_worker.py FOLDER TRAIN_S`.

FOLDER is what `salientpp.experiment.prepare` wrote; rank 0 writes FOLDER/batches.json. Training is slept.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from exchanges_worker import measured_costs

from wirewise.cost import LinkCost, Links
from wirewise.profile.ending import end_process
from wirewise.runtime.transport import Transport
from wirewise.trials.rank import join_job, prepare_process
from wirewise_papers.salientpp.experiment import MiniBatchJob, Mode
from wirewise_papers.salientpp.part import MachinePart


class Batches(msgspec.Struct, kw_only=True):
    """Seconds on the slowest machine, and what predictions need."""

    batch_s: list[float]
    """Mean of each epoch."""
    prepare_s: float
    """Sampling, slicing and assembling of a batch, median."""
    row_bytes: int
    latency_s: list[list[float]]
    """Latency from each machine to each, which the machines measured before, with `s_per_byte`."""
    s_per_byte: list[list[float]]

    @property
    def links(self) -> Links:
        """The links as they were measured."""
        pairs = {
            (sender, receiver): LinkCost(latency_s=latency_s, s_per_byte=self.s_per_byte[sender][receiver])
            for sender, row in enumerate(self.latency_s)
            for receiver, latency_s in enumerate(row)
            if sender != receiver
        }
        return Links.of_pairs(pairs, len(self.latency_s))


def work(job: MiniBatchJob, folder: Path, transport: Transport, train_s: float) -> Batches:
    store = dist.distributed_c10d._get_default_store()
    rows, ids, sampling = (Transport(dist.new_group(), store=store) for _ in range(3))
    part = MachinePart(job, folder, transport.rank, ids, sampling)
    mode = Mode(depth=0, cached=job.alpha > 0, bits=32)
    loader = part.loader(rows, job.fanouts, mode, part.train)
    pairs = measured_costs(rows, part.num_features).links.pairs
    seconds, stages = [], []
    for epoch in range(job.epochs + 1):
        transport.all_reduce(torch.zeros(1), "the start of an epoch")
        start_s = time.perf_counter()
        for batch in loader.epoch(epoch):
            time.sleep(train_s)
            stages.append([batch.stage_s[name] for name in ("sample", "slice", "assemble")])
        if epoch:
            seconds.append((time.perf_counter() - start_s) / len(loader))
    own = [*seconds, float(np.median(np.sum(stages, axis=1)))]
    every = torch.stack(transport.all_gather(torch.tensor(own, dtype=torch.float64), "seconds"))
    *slowest, prepare_s = every.max(dim=0).values.tolist()
    return Batches(
        batch_s=slowest,
        prepare_s=prepare_s,
        row_bytes=4 * part.num_features,
        latency_s=pairs.latency_s.tolist(),
        s_per_byte=pairs.s_per_byte.tolist(),
    )


def main(path: str, train_s: str) -> None:
    folder = Path(path)
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=MiniBatchJob)
    prepare_process()
    with join_job() as transport:
        found = work(job, folder, transport, float(train_s))
        if transport.rank == 0:
            (folder / "batches.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    end_process()
