"""One rank that trains in one mode and notes its resident memory: `worker.py JOB.json`.

Kernels are compiled and buffers of the process group made on a tiny graph first; then the kernel's peak is reset,
so that the peak afterwards is that of the training alone. Rank 0 writes `memory.json` next to the job.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from wirewise import graph
from wirewise.recipes.job import Job
from wirewise.runtime import full_graph


class Memory(msgspec.Struct, kw_only=True):
    """Bytes of every rank."""

    formula: list[int] = []
    part: list[int] = []
    """Arrays of the part: the first term of the formula."""
    growth: dict[str, list[int]] = {}
    """Peak of the resident set above that before the part was loaded, after each stage."""
    inputs: list[int] = []
    """Input features as tensors, raw and aggregated, that the part's own arrays do not hold."""
    exchange: list[int] = []
    """Send and receive buffers of all lanes, and traces."""
    structure: list[int] = []
    """Sparse matrices of the aggregation."""


def trained(job: Job, folder: Path, transport, member: int, note) -> full_graph.Trainer:
    part = graph.load_part(folder, transport.rank, transport.world_size)
    note("part loaded")
    torch.manual_seed(job.seed)
    model = full_graph.FullGraphNet(
        part.num_features,
        job.hidden,
        part.num_classes,
        layers=job.layers,
        convolution=job.model,
        dropout=job.dropout,
        norm=job.norm,
    )
    options = full_graph.TrainerOptions(seed=job.seed, evaluate_every=0)
    tensors = full_graph.PartTensors(part)
    mode = full_graph.mode(job.modes[0])
    trainer = full_graph.Trainer(tensors, model, transport, mode, options, member=member)
    for epoch in range(job.epochs):
        trainer.train_epoch()
        note(f"{epoch + 1} epoch{'s' * bool(epoch)}")
    trainer.evaluate()
    note("evaluated")
    return trainer


def tensor_bytes(thing: object, seen: set[int], depth: int = 6) -> int:
    """Bytes of the tensors and arrays that an object holds, each storage once."""
    if id(thing) in seen or depth < 0:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        pointer = storage.data_ptr()
        if pointer in seen:
            return 0
        seen.add(pointer)
        return storage.nbytes()
    if hasattr(thing, "__array_interface__"):
        pointer = thing.__array_interface__["data"][0]
        base = getattr(thing, "base", None)
        if pointer in seen or (base is not None and hasattr(base, "nbytes") and id(base) in seen):
            return 0
        seen.add(pointer)
        return thing.nbytes
    if isinstance(thing, dict):
        return sum(tensor_bytes(v, seen, depth - 1) for v in thing.values())
    if isinstance(thing, (list, tuple)):
        return sum(tensor_bytes(v, seen, depth - 1) for v in thing)
    names = set(getattr(thing, "__dict__", {})) | set(getattr(type(thing), "__slots__", ()))
    if type(thing).__module__.startswith("wirewise"):
        return sum(tensor_bytes(getattr(thing, n, None), seen, depth - 1) for n in names)
    return 0


def start_from_here() -> int:
    """Give free memory back, reset the kernel's peak, and return the resident set."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return full_graph.resident_bytes()


def main(path: str) -> None:
    torch.set_num_threads(1)
    full_graph.keep_freed_memory()
    folder = Path(path).parent
    job = msgspec.json.decode(Path(path).read_bytes(), type=Job)
    dist.init_process_group("gloo")
    transport = full_graph.Transport(
        dist.distributed_c10d._get_default_group(), store=dist.distributed_c10d._get_default_store()
    )
    trained(job, folder / "tiny", transport, 0, lambda stage: None).close()
    before = start_from_here()
    stages: dict[str, int] = {}

    def note(stage: str) -> None:
        stages[stage] = full_graph.peak_resident_bytes() - before

    trainer = trained(job, folder / "parts", transport, 1, note)
    part, tensors = trainer.tensors.part, trainer.tensors
    widths = full_graph.FullGraphNet.kept_widths(job.hidden, part.num_classes, job.layers)
    seen = {id(part), id(trainer.transport), id(trainer.tensors)}
    part_bytes = tensor_bytes(list(vars(part).values()), seen)
    parts_of = {
        "formula": graph.part_memory_bytes(part, widths),
        "part": part_bytes,
        "inputs": tensor_bytes(tensors._inputs, seen),
        "structure": tensor_bytes(tensors._hoods, seen),
        "exchange": tensor_bytes(trainer.exchange.lanes, seen),
    }
    table = torch.tensor([*parts_of.values(), *stages.values()], dtype=torch.int64)
    ranks = torch.stack(transport.all_gather(table, "memory")).t().tolist()
    if transport.rank == 0:
        named = dict(zip([*parts_of, *stages], ranks, strict=True))
        found = Memory(growth={s: named[s] for s in stages}, **{name: named[name] for name in parts_of})
        (folder / "memory.json").write_bytes(msgspec.json.encode(found))
    transport.all_reduce(torch.zeros(1), "end")
    trainer.close()
    transport.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
