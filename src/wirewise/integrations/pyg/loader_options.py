"""Arguments that loaders of sampled batches share; arguments of PyG's loaders that are not supported are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch_geometric.data import Data

from wirewise.errors import InputError

__all__ = ["LoaderOptions"]

_IN_TRANSFORM = "change the batch by transform="
_THREADS = "threads make the batches, and their order depends on seed= and shuffle= alone"
_REFUSED: dict[str, tuple[Any, str]] = {
    "replace": (False, "neighbours are sampled without replacement"),
    "directed": (True, "a batch holds the sampled edges"),
    "subgraph_type": ("directional", "a batch holds the sampled edges, each in its own direction"),
    "disjoint": (
        False,
        "the seeds of a batch share their neighbourhood; take batch_size=1 for one of its own",
    ),
    "temporal_strategy": ("uniform", "neighbours are sampled without regard to time"),
    "time_attr": (None, "neighbours are sampled without regard to time"),
    "input_time": (None, "neighbours are sampled without regard to time"),
    "edge_label_time": (None, "neighbours are sampled without regard to time"),
    "weight_attr": (None, "all neighbours of a node are equally likely"),
    "transform_sampler_output": (None, _IN_TRANSFORM),
    "neighbor_sampler": (None, "the loader has its own"),
    "custom_cls": (None, _IN_TRANSFORM),
    "input_id": (None, "input_id counts the input nodes, or is the node of a mask"),
    "dataset": (None, "the data are the first argument"),
    "collate_fn": (None, _IN_TRANSFORM),
    "sampler": (None, _THREADS),
    "batch_sampler": (None, _THREADS),
    "generator": (None, _THREADS),
    "multiprocessing_context": (None, _THREADS),
    "worker_init_fn": (None, _THREADS),
    "timeout": (0, _THREADS),
}
"""Supported value and reason of arguments that have one value only."""
_NO_EFFECT = ("filter_per_worker", "is_sorted", "persistent_workers", "pin_memory_device", "in_order")
"""Arguments that change how PyG and torch make batches, and not the batches."""


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of a loader of sampled batches.

    Args:
        batch_size: Seeds of a batch of this rank.
        shuffle: Whether the order of the seeds changes in each epoch.
        drop_last: Whether to leave out seeds that do not fill a batch of all ranks.
        transform: Function of a batch, called in the thread that iterates, in the order of the batches.
        num_workers: Threads that make batches ahead; 0 makes each on demand. Defaults to 1, or to 0 if attributes of
            the data require gradients.
        prefetch_factor: Batches that each thread makes ahead.
        pin_memory: Whether batches lie in pinned memory, where there is a CUDA device.
        seed: Seed of order and sampling; the same on all ranks.
        group: Process group whose ranks share the seeds. Defaults to the default one if it is initialized.
        distributed: False if this rank has seeds of its own, which no other rank needs to know.
        timeout_s: Seconds after which a rank that does not make its loader is an error on all others.
    """

    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    transform: Callable[[Data], Any] | None = None
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool = False
    seed: int = 0
    group: dist.ProcessGroup | None = None
    distributed: bool | None = None
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_workers", 0), ("prefetch_factor", 1), ("seed", 0)):
            value = getattr(self, name)
            optional = name in ("num_workers", "prefetch_factor") and value is None
            if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} is {value!r}; expected an integer of at least {least}")
        if self.distributed and self.group is None and not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "distributed=True without a process group; call torch.distributed.init_process_group first and start "
                "the script by torchrun"
            )

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> LoaderOptions:
        """Options from the arguments of a call.

        Raises:
            InputError: An argument is unknown, not supported or out of range.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        for name, value in arguments.items():
            if name in _REFUSED:
                expected, reason = _REFUSED[name]
                if getattr(value, "value", value) != expected:
                    raise InputError(f"{name}={value!r} is not supported; expected {expected!r}: {reason}")
            elif name not in names and name not in _NO_EFFECT:
                raise InputError(f"there is no argument {name!r}; expected one of {', '.join(sorted(names))}")
        return cls(**{name: value for name, value in arguments.items() if name in names})

    def process_group(self) -> dist.ProcessGroup | None:
        """Group whose ranks share the seeds. None if this rank has its own."""
        if self.distributed is False:
            return None
        if self.group is None and dist.is_available() and dist.is_initialized():
            return dist.group.WORLD
        return self.group
