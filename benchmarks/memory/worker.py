"""One rank that trains and notes its resident memory: `worker.py JOB.json KEPT_BYTES`.

Kernels are compiled and buffers of the process group made on a tiny graph first; then the kernel's peak is reset,
so that the peak afterwards is that of the training alone. Rank 0 writes `memory.json` next to the job.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from wirewise import graph
from wirewise.profile.ending import end_process
from wirewise.runtime import full_graph
from wirewise.trials.rank import join_job, prepare_process
from wirewise_papers.adaqp.job import FullGraphJob


class Memory(msgspec.Struct, kw_only=True):
    """Memory of every rank."""

    terms: list[dict[str, int]] = []
    """Bytes by the formula, term by term."""
    first: list[int] = []
    """Bytes of the peak of the resident set above that before the part was loaded, after one epoch of each mode."""
    peak: list[int] = []
    """Peak of each rank after all epochs and evaluations."""
    bits: float = 0.0
    """Mean width of the messages of the last mode in the last epoch."""
    epoch_s: float = 0.0
    """Median over the epochs of the last mode."""


def trained(
    job: FullGraphJob, folder: Path, transport: full_graph.Transport, member: int, before: int
) -> Memory:
    """Train all modes in turns, evaluate as a run does, and note what this rank needed."""
    part = graph.load_part(folder, transport.rank, transport.world_size)
    tensors = full_graph.PartTensors(part)
    modes = [full_graph.mode(name, gradient_bits=job.gradient_bits) for name in job.modes]
    options = full_graph.TrainerOptions(seed=job.seed, evaluate_every=0)
    trainers = [
        full_graph.Trainer(tensors, model_of(job, part), transport, mode, options, member=member + i)
        for i, mode in enumerate(modes)
    ]
    growth = []
    for _ in range(job.epochs):
        for trainer in trainers:
            trainer.train_epoch()
            trainer.evaluate()
        growth.append(full_graph.peak_resident_bytes() - before)
    for trainer in trainers:
        trainer.evaluate(bits=32)
    growth.append(full_graph.peak_resident_bytes() - before)
    terms = full_graph.memory_terms(part, modes, hidden=job.hidden, layers=job.layers, convolution=job.model)
    counts = [c for of in trainers[-1].bits.counts().values() for c in of.items()]
    seconds = [r.train_s for r in trainers[-1].records()]
    for trainer in trainers:
        trainer.close()
    return Memory(
        terms=[asdict(terms)],
        first=growth[:1],
        peak=growth[-1:],
        bits=sum(b * n for b, n in counts) / max(1, sum(n for _, n in counts)),
        epoch_s=statistics.median(seconds),
    )


def model_of(job: FullGraphJob, part: graph.Part) -> full_graph.FullGraphNet:
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


def start_from_here() -> int:
    """Give free memory back, reset the kernel's peak, and return the resident set."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return full_graph.resident_bytes()


def gathered(own: Memory, transport: full_graph.Transport) -> Memory:
    """Memory with the lists of all ranks."""
    numbers = [*own.terms[0].values(), *own.first, *own.peak]
    ranks = torch.stack(transport.all_gather(torch.tensor(numbers, dtype=torch.int64), "memory")).tolist()
    return Memory(
        terms=[dict(zip(own.terms[0], row, strict=False)) for row in ranks],
        first=[row[-2] for row in ranks],
        peak=[row[-1] for row in ranks],
        bits=own.bits,
        epoch_s=own.epoch_s,
    )


def main(path: str, kept_bytes: str) -> None:
    folder = Path(path).parent
    job = msgspec.json.decode(Path(path).read_bytes(), type=FullGraphJob)
    prepare_process()
    with join_job() as transport:
        full_graph.keep_freed_memory(int(kept_bytes))
        trained(job, folder / "tiny", transport, 0, 0)
        found = trained(job, folder / "parts", transport, len(job.modes), start_from_here())
        found = gathered(found, transport)
        if transport.rank == 0:
            (folder / "memory.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process()
