"""Names of DistributedDataParallel's buckets, whose collectives its reducer starts in C++."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["BucketNames"]


class BucketNames:
    """Tells which of the collectives of a backward pass are buckets, and of which parameters."""

    def __init__(self) -> None:
        self._models: list[Any] = []
        self._buckets: list[tuple[int, tuple[str, ...]]] = []
        self._next = -1
        self._known = False

    def add(self, model: nn.Module) -> None:
        """Names of this model's buckets are wanted."""
        if hasattr(model, "_get_ddp_logging_data"):
            self._models.append(model)
            self._known = False

    def settle(self) -> None:
        """Ask for the buckets, once they have been made in the order of the gradients."""
        if self._known or not self._models:
            return
        found = [_buckets(model) for model in self._models]
        if all(found):
            self._buckets = [bucket for one in found for bucket in one]
            self._known = True

    def begin(self) -> None:
        """A backward pass begins."""
        self._next = 0

    def end(self) -> None:
        """It is over."""
        self._next = -1

    def name(self, collective: str, size_bytes: int) -> tuple[str, tuple[str, ...]]:
        """Name of a collective, and its parameters where it is the bucket that is due."""
        if collective == "all_reduce" and 0 <= self._next < len(self._buckets):
            size, parameters = self._buckets[self._next]
            if size == size_bytes:
                self._next += 1
                return f"bucket {self._next - 1}", parameters
        return collective or "collective", ()


def _buckets(model: Any) -> list[tuple[int, tuple[str, ...]]]:
    """(bytes, parameters) of each bucket after the rebuild; empty: not rebuilt yet."""
    data = model._get_ddp_logging_data()
    indices = str(data.get("rebuilt_per_bucket_param_indices", ""))
    named = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
    found = []
    for group in filter(None, (part.strip() for part in indices.split(","))):
        own = [named[int(index)] for index in group.split()]
        found.append((sum(p.numel() * p.element_size() for _, p in own), tuple(name for name, _ in own)))
    return found
