"""Shim inside every rank of an unmodified script: counts optimizer steps, serves the run's data, ends the job."""

from __future__ import annotations

import gc
import json
import os
import shutil
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from wirewise.hosts import integer_variable
from wirewise.profile.ending import end_process
from wirewise.profile.stalls import data
from wirewise.profile.stalls.settings import StallSettings

__all__ = ["install"]


def install() -> None:
    """Replace the loaders of this process and watch its optimizers; called once torch is imported."""
    settings = StallSettings.read()
    session = _Session(settings)
    if settings.data in ("cold", "partial", "whole"):
        data.drop_pages_on_open()
    original = DataLoader.__iter__
    DataLoader.__iter__ = lambda loader: session.iterate(loader, original)  # type: ignore[method-assign]
    register_optimizer_step_post_hook(lambda optimizer, *_: session.stepped(optimizer))


class _Session:
    """One rank of one run."""

    def __init__(self, settings: StallSettings) -> None:
        self._settings, self._pid = settings, os.getpid()
        self._rank = integer_variable("RANK", 0)
        self._optimizer: Callable[[], object] | None = None
        self._file: Any = None
        self._steps = 0
        self._facts: dict[str, Any] = {"rank": self._rank, "loaders": 0}
        self._first: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._served: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def iterate(self, loader: DataLoader, original: Callable[[DataLoader], Any]) -> Any:
        """Iterate over a loader as this run does."""
        if self._first.get(loader) is None and loader not in self._served:
            self._note(loader)
        if self._settings.data == "synthetic":
            return self._replay(loader, original)
        if self._settings.data == "whole":
            self._served[loader] = None
            return original(loader)
        if loader not in self._served:
            local, ranks = (integer_variable(n, d) for n, d in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
            self._served[loader] = data.serve(loader.dataset, self._settings, local, ranks)
        real = loader.dataset
        # Only the new iterator keeps the stand-in; loaders refuse another data set by assignment.
        loader.__dict__["dataset"] = self._served[loader]
        try:
            return original(loader)
        finally:
            loader.__dict__["dataset"] = real

    def _replay(self, loader: DataLoader, original: Callable[[DataLoader], Any]) -> Iterator[Any]:
        if loader not in self._first:
            self._first[loader] = data.take_batches(loader, original(loader), self._settings.batches)
        first = self._first[loader]
        try:
            length: int | None = len(loader)
        except TypeError:
            length = None
        return data.replay(first, length if first else 0)

    def _note(self, loader: DataLoader) -> None:
        """Describe the first loader, which is the one that is trained from."""
        self._facts["loaders"] += 1
        if self._facts["loaders"] > 1:
            return
        sampler = getattr(loader, "batch_sampler", None)
        self._facts |= {
            "batch": loader.batch_size or getattr(sampler, "batch_size", None),
            "workers": loader.num_workers,
            "prefetched": loader.num_workers * (loader.prefetch_factor or 0),
            "separable": data.is_separable(loader.dataset),
            "map_style": hasattr(loader.dataset, "__getitem__"),
        }
        self._write_facts()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the end of a step; the last one ends this process."""
        if self._pid != os.getpid():
            return
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
            self._claim()
        # A script with several optimizers steps once when the first one of them does.
        if self._optimizer() is not optimizer or self._file is None:
            return
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._file.write(struct.pack("<d", time.perf_counter()))
        self._steps += 1
        if self._steps == 1 + self._settings.warmup + self._settings.steps:
            self._finish(optimizer)

    def _claim(self) -> None:
        # A helper process that a rank starts has the rank's variables; who steps first is the rank.
        try:
            path = Path(self._settings.folder) / f"rank-{self._rank}.steps"
            self._file = path.open("xb", buffering=0)
        except FileExistsError:
            self._file = None

    def _write_facts(self) -> None:
        path = Path(self._settings.folder) / f"rank-{self._rank}.json"
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        unfinished.write_text(json.dumps(self._facts))
        unfinished.replace(path)

    def _finish(self, optimizer: torch.optim.Optimizer) -> None:
        """End this rank without running the rest of the script, which might evaluate or save for long."""
        for served in self._served.values():
            if isinstance(served, data.TimedDataset):
                served.flush()
        self._facts |= _gradients(optimizer) | {
            "device": str(optimizer.param_groups[0]["params"][0].device.type)
        }
        self._write_facts()
        self._file.close()
        if os.environ.get("LOCAL_RANK", "0") == "0":
            end_process(lambda: shutil.rmtree(self._settings.cache_folder, ignore_errors=True))
        end_process()


def _gradients(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Gradients that a step reduces: bytes and tensors, and the buckets that they travel in."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    found: dict[str, Any] = {
        "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "gradient_tensors": len(parameters),
        "reductions": None,
    }
    for module in gc.get_objects():
        if type(module) is torch.nn.parallel.DistributedDataParallel:
            logged = module._get_ddp_logging_data()
            sizes = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
            found["reductions"] = len([s for s in sizes.split(",") if s.strip()]) or None
    return found
