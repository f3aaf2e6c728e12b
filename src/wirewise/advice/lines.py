"""Lines to add to a script for a change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "accumulation_lines",
    "bucket_lines",
    "graph_lines",
    "loader_lines",
    "pinned_lines",
    "plan_lines",
    "wrapper_lines",
]


def plan_lines(path: Path, options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Lines that train under the fusion plan in a file.

    Args:
        path: File of the plan.
        options: Options of its codecs. Defaults to the codecs' own defaults.
    """
    names = "Compression, parallel" if options else "parallel"
    more = f", compression=Compression(options={options})" if options else ""
    return (
        "from wirewise.plans import load",
        f"from wirewise.runtime.data_parallel import {names}",
        f'model = parallel(model, load("{os.path.relpath(path)}"), optimizer{more})  # not DistributedDataParallel',
    )


def bucket_lines(mebibytes: str) -> tuple[str, ...]:
    """Lines that set another bucket size, in MiB."""
    return (f"model = DistributedDataParallel(model, bucket_cap_mb={mebibytes})",)


def wrapper_lines(flag: str) -> tuple[str, ...]:
    """Lines that set a flag of DistributedDataParallel."""
    return (f"model = DistributedDataParallel(model, {flag}=True)",)


def loader_lines(workers: int) -> tuple[str, ...]:
    """Lines that load batches in worker processes, ahead of the step that needs them."""
    return (
        f"loader = DataLoader(dataset, ..., num_workers={workers}, prefetch_factor=4, persistent_workers=True)",
    )


def pinned_lines() -> tuple[str, ...]:
    """Lines that copy batches from pinned memory, asynchronously to the device's compute."""
    return (
        "loader = DataLoader(dataset, ..., pin_memory=True)",
        "batch = batch.to(device, non_blocking=True)",
    )


def accumulation_lines(times: int) -> tuple[str, ...]:
    """Lines that accumulate gradients over several micro-batches before each exchange."""
    return (
        "with contextlib.ExitStack() as stack:",
        f"    if (number + 1) % {times}: stack.enter_context(model.no_sync())",
        f"    (loss / {times}).backward()",
        f"if (number + 1) % {times} == 0: optimizer.step(); optimizer.zero_grad()",
    )


def graph_lines(mode: str) -> tuple[str, ...]:
    """Lines that send rows of a graph in another mode."""
    return (f'job = pyg.Job(data, mode="{mode}")',)
