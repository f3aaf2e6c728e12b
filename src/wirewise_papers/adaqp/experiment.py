"""AdaQP: full-graph GNN training with adaptively quantized messages, compared with baselines.

B. Wan, J. Zhao, C. Wu: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN
Training, MLSys 2023. Composes `graph` (parts), `codec` (messages), `planners.bitwidth` (bits),
`runtime.full_graph` (training) and `lab` (the network). `run` prepares the parts, starts one
`adaqp.worker` per rank and returns their measurements.
"""

from __future__ import annotations

import datetime
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import msgspec
import numpy as np

from wirewise import graph, plans, units
from wirewise.decoding import decode_json
from wirewise.files import owns_folder, write_json
from wirewise.results import EpochRecord
from wirewise.topology import processor
from wirewise.trials.start import choose_network, open_network, run_ranks
from wirewise_papers.adaqp.job import Event, FullGraphJob, ModeOutcome, Outcome
from wirewise_papers.adaqp.progress import TrainingProgress
from wirewise_papers.adaqp.records import ModeResult, RunResult
from wirewise_papers.adaqp.series import WARM_UP, mean_bits, smoothed_losses

__all__ = ["run", "saved_plan", "train"]

_NEAR = 1.01
"""A mode has reached the reference's final loss when its own is within one percent of it."""


@owns_folder
def run(job: FullGraphJob, folder: Path, progress: TrainingProgress, *, resume: bool = False) -> RunResult:
    """Partition the graph, train it in every mode, and return the measurements.

    Args:
        job: Training and network.
        folder: Existing folder for parts, events, logs and the result.
        progress: Called with every finished epoch.
        resume: Whether to resume from the parts and the newest checkpoints in the folder; `job` is then what
            `resuming.read_job` returned.

    Raises:
        WirewiseError: The dataset, the network, a checkpoint or a worker failed; the message says which.
    """
    start, notes = _start(job, folder) if resume else (None, [])
    facts = (
        partition_facts(graph.read_meta(folder / "parts")) if resume else prepare_parts(job, folder, progress)
    )
    network, more = choose_network(job.network)
    job = msgspec.structs.replace(job, network=network)
    notes += more
    if job.network == "lab" and job.links:
        other = ", ".join(f"host {host} at {rate}" for host, rate in sorted(job.links.items()))
        notes.append(f"Links differ: {other}, every other host at {job.link}.")
    for note in notes:
        progress.note(note)
    progress.start(list(job.modes), job.epochs)
    try:
        outcome = train(job, folder, progress.epoch, start=start)
    finally:
        progress.finish()
    result = summarize(job, facts, outcome, notes)
    write_json(folder / "result.json", result)
    return result


def train(
    job: FullGraphJob,
    folder: Path,
    on_epoch: Callable[[str, EpochRecord], None],
    *,
    start: Mapping[str, int] | None = None,
) -> Outcome:
    """Run the workers until they end, and return the measurements.

    Args:
        job: The job, with its network resolved.
        folder: Folder with the parts, for the job file, events, logs and the outcome.
        on_epoch: Called with every finished epoch, also with those before the checkpoints.
        start: Epoch of the checkpoint from which each mode resumes, 0 for a new start. By default all modes start
            anew, and checkpoints of an earlier run are removed.

    Raises:
        InputError: There are no such checkpoints.
        PeerError: A worker failed; the message quotes the end of its output and names its log.
    """
    _clear(job, folder, start)
    if start is not None:
        from wirewise_papers.adaqp import resuming

        for event in resuming.events(folder):
            on_epoch(event.mode, event.record)

    def report(record: bytes) -> None:
        event = decode_json(record, Event)
        on_epoch(event.mode, event.record)

    with open_network(job.network, job.hosts, job.link, job.links) as network:
        return run_ranks(
            "wirewise_papers.adaqp.worker",
            folder,
            Outcome,
            network=network,
            ranks=job.workers,
            job=job,
            report=report,
            arguments=[msgspec.json.encode(start or {}).decode()],
        )


def _clear(job: FullGraphJob, folder: Path, start: Mapping[str, int] | None) -> None:
    """Remove what an earlier run left, from the epochs `start` on; first of all what a later one could resume."""
    # Checkpoints need torch, which takes seconds to import.
    if start is not None:
        from wirewise_papers.adaqp import resuming

        resuming.rewind(job, folder, start)
    else:
        if (folder / "checkpoints").is_dir():
            from wirewise_papers.adaqp import resuming

            resuming.remove_checkpoints(folder)
        (folder / "events.jsonl").unlink(missing_ok=True)
    for mode in job.modes:
        (folder / f"plan-{mode}.json").unlink(missing_ok=True)


def saved_plan(folder: Path, job: FullGraphJob) -> plans.Plan | None:
    """Final bits of the first planning mode of a finished run. None if no mode planned."""
    paths = [folder / f"plan-{mode}.json" for mode in job.modes]
    return next((plans.load(path) for path in paths if path.exists()), None)


def prepare_parts(job: FullGraphJob, folder: Path, progress: TrainingProgress) -> dict[str, float]:
    """Load the dataset, partition it and save one part per worker; returns facts of the partition."""
    data = graph.load(job.dataset, seed=job.seed)
    assignment = graph.partition(data, job.workers, method=job.partition, seed=job.seed)
    meta = graph.save_parts(data, assignment, folder / "parts")
    progress.note(f"{data.name}: {data.num_nodes:,} nodes, {meta.num_edges:,} edges in {job.workers} parts")
    return partition_facts(meta)


def partition_facts(meta: graph.PartsMeta) -> dict[str, float]:
    """Facts of a result about the graph and its partition."""
    return {
        "nodes": meta.num_nodes,
        "edges": meta.num_edges,
        "features": meta.num_features,
        "classes": meta.num_classes,
        "halo_rows": sum(p["halo"] for p in meta.parts),
        "central_fraction": sum(p["central"] for p in meta.parts) / meta.num_nodes,
    }


def _start(job: FullGraphJob, folder: Path) -> tuple[dict[str, int], list[str]]:
    """Where each mode goes on, and what a reader of the result must know of it."""
    # Needs torch, which takes seconds to import.
    from wirewise_papers.adaqp import resuming

    start = resuming.positions(job, folder)
    where = ", ".join(f"{mode} after epoch {epoch}" for mode, epoch in start.items())
    return start, [f"Resumed from checkpoints: {where}; times before and after are of different processes."]


def summarize(job: FullGraphJob, facts: dict[str, float], outcome: Outcome, notes: list[str]) -> RunResult:
    """Convert the workers' measurements to the result record."""
    reference = job.modes[0]
    target = _NEAR * smoothed_losses(outcome.modes[reference].records)[-1]
    own = ("dataset", "workers", "hosts", "network", "model", "hidden", "layers", "seed", "epochs")
    return RunResult(
        **{name: getattr(job, name) for name in own},
        link_bytes_per_s=units.parse_rate(job.link) if job.network == "lab" and not job.links else None,
        graph=facts,
        reference=reference,
        modes={name: _mode_result(mode, target, outcome) for name, mode in outcome.modes.items()},
        environment={
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "processor": "{1} x {0}".format(*processor()),
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("wirewise", "torch", "numba", "numpy")},
        },
        gradients=job.gradients,
        notes=notes,
    )


def _mode_result(mode: ModeOutcome, target: float, outcome: Outcome) -> ModeResult:
    times = [r.train_s for r in mode.records[WARM_UP:] or mode.records]
    low, median, high = np.percentile(times, [25, 50, 75])
    return ModeResult(
        epochs=mode.records,
        epoch_s=float(median),
        epoch_s_quartiles=(float(low), float(high)),
        time_to_reference_loss_s=time_to_loss(mode.records, target),
        final_loss=smoothed_losses(mode.records)[-1],
        accuracy=mode.accuracy,
        bytes_sent=sum(r.bytes_sent for r in mode.records),
        kernel_bytes_sent=mode.kernel_bytes,
        mean_bits=mean_bits(mode.records) or 0.0,
        peak_memory_bytes=outcome.peak_memory_bytes,
        memory_model_bytes=outcome.memory_model_bytes,
    )


def time_to_loss(records: list[EpochRecord], target: float) -> float | None:
    """Time until the smoothed loss was at most `target`, evaluations included, in seconds; None if never."""
    elapsed = 0.0
    for record, loss in zip(records, smoothed_losses(records), strict=True):
        elapsed += record.train_s + record.eval_s
        if loss <= target:
            return elapsed
    return None
