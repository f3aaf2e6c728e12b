"""Cupcake: measurement of compression costs, plans of compressed groups, and their comparison with baselines.

Z. Wang, X. Wu, Z. Xu, T. S. E. Ng: Cupcake: A Compression Scheduler for Scalable Communication-Efficient Distributed
Training, MLSys 2023. The model is replayed from a trace of its gradients: its computing time is slept; codecs,
buckets, collectives and links are real.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from wirewise.decoding import decode_json
from wirewise.files import owns_folder
from wirewise.trace.gradients import read_gradient_trace
from wirewise.trials.start import JOB, choose_network, open_network, run_ranks
from wirewise_papers.cupcake.job import COSTS_FILE, CupcakeJob
from wirewise_papers.cupcake.records import CompressionRun

__all__ = ["CupcakeJob", "make_job", "run"]


def make_job(trace: str | os.PathLike[str], *, scale: int = 1, **settings: object) -> CupcakeJob:
    """Make the job for a gradient trace.

    Args:
        trace: File of gradients, for `read_gradient_trace`.
        scale: Divisor of the number of elements of each gradient.
        settings: Fields of `CupcakeJob`.

    Raises:
        InputError: The file or a setting is invalid.
        LabError: The scale is below 1.
    """
    # Needs torch, which takes seconds to import.
    from wirewise.lab.replayed import scale_trace

    found = scale_trace(read_gradient_trace(trace), scale)
    found = msgspec.structs.replace(found, model=found.model or Path(trace).stem)
    return CupcakeJob(trace=found, scale=scale, **settings)  # type: ignore[arg-type]


@owns_folder
def run(job: CupcakeJob, folder: Path, log: Callable[[str], None]) -> CompressionRun:
    """Execute the plans of a job, a rank on each host of a lab or of an allocation of Slurm.

    Args:
        job: Settings of the run.
        folder: Folder for the job, the measured costs and gradients, the plans, logs and the result; existing costs
            are reused if they are of the same job except for its plans.
        log: Called with progress messages.

    Raises:
        InputError: The allocation has too few hosts.
        LabError: No lab can be built here.
        PeerError: A rank failed; the message quotes the end of its output.
    """
    chosen, notes = choose_network(job.network, loopback=False)
    job = msgspec.structs.replace(job, network=chosen)
    for note in notes:
        log(note)
    _keep_costs(job, folder)
    with open_network(chosen, job.hosts, job.link) as network:
        worker = "wirewise_papers.cupcake.worker"
        return run_ranks(worker, folder, CompressionRun, network=network, ranks=job.hosts, job=job, log=log)


def _keep_costs(job: CupcakeJob, folder: Path) -> None:
    """Remove costs that were measured for another job."""
    try:
        before = decode_json((folder / JOB).read_bytes(), CupcakeJob)
    except (OSError, msgspec.MsgspecError):
        before = None
    same = before is not None and all(
        getattr(before, name) == getattr(job, name) for name in ("trace", "hosts", "link", "network", "ratio")
    )
    if not same:
        (folder / COSTS_FILE).unlink(missing_ok=True)
