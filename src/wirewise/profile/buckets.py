"""Identification of the collectives of a backward pass that are DistributedDataParallel buckets.

The reducer launches them in C++, without names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["BucketNames"]


class _Parameter(NamedTuple):
    name: str
    size_bytes: int


class _Bucket(NamedTuple):
    name: str
    size_bytes: int
    parameters: tuple[str, ...]


class _Model:
    """A wrapped model, and its buckets once the reducer has made them in the order of the gradients."""

    def __init__(self, model: Any, parameters: list[_Parameter]) -> None:
        self.model, self.parameters = model, parameters
        self.buckets: list[_Bucket] = []
        self.known = False
        self.next = 0
        """Index of the bucket that is due in this pass."""

    def query(self, first: int) -> None:
        """Ask the reducer for its buckets, which are numbered from `first` on."""
        indices = str(self.model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))
        groups = [list(map(int, part.split())) for part in indices.split(",") if part.strip()]
        self.known = bool(groups)
        # A model that was frozen in part between its wrapping and now has no names that are sure.
        if self.known and sum(map(len, groups)) == len(self.parameters):
            self.buckets = [
                _bucket(first + place, [self.parameters[index] for index in group])
                for place, group in enumerate(groups)
            ]


class BucketNames:
    """Names for bucket all-reduces of backward passes."""

    def __init__(self) -> None:
        self._models: list[_Model] = []
        self._wrapped: dict[int, list[_Parameter]] = {}
        """Parameters of models that were wrapped while this is alive, by id of the wrapper."""
        self._running = False
        self._wrap: Any = DistributedDataParallel.__init__
        names = self

        def init(model: Any, *args: Any, **kwargs: Any) -> None:
            names._wrap(model, *args, **kwargs)
            names._wrapped[id(model)] = _parameters(model)

        self._init = init
        DistributedDataParallel.__init__ = init  # type: ignore[method-assign, assignment]

    def remove(self) -> None:
        """Stop watching for further models."""
        if DistributedDataParallel.__init__ is self._init:
            DistributedDataParallel.__init__ = self._wrap  # type: ignore[method-assign]
        self._wrapped.clear()

    def add(self, model: nn.Module) -> None:
        """Add a model whose buckets to name."""
        if hasattr(model, "_get_ddp_logging_data"):
            # The reducer numbers what required a gradient when it was made; a GAN freezes one model meanwhile.
            parameters = self._wrapped.get(id(model)) or _parameters(model)
            self._models.append(_Model(model, parameters))

    def called(self, model: nn.Module) -> None:
        """Handle the start of a model's forward pass; of two models with equal buckets, the last one called is next."""
        self._models.sort(key=lambda one: one.model is not model)

    def query(self) -> None:
        """Query buckets that are not known yet.

        Not during a backward pass, when the reducer holds the lock that the query needs.
        """
        if torch._C._current_graph_task_id() >= 0:
            return
        for one in self._models:
            if not one.known:
                one.query(sum(len(other.buckets) for other in self._models))

    def begin(self) -> None:
        """Handle the start of a backward pass."""
        self.query()
        self._running = True
        for one in self._models:
            one.next = 0

    def end(self) -> None:
        """Handle the end of a backward pass."""
        self._running = False

    def name(self, collective: str, size_bytes: int) -> tuple[str, tuple[str, ...]]:
        """Name of a collective, and its parameters if it is the bucket of a due model."""
        if collective == "all_reduce" and self._running:
            # A model whose first buckets came is before one that has not begun.
            for one in sorted(self._models, key=lambda one: one.next == 0):
                if one.next < len(one.buckets) and one.buckets[one.next].size_bytes == size_bytes:
                    one.next += 1
                    return one.buckets[one.next - 1].name, one.buckets[one.next - 1].parameters
        return collective or "collective", ()


def _parameters(model: Any) -> list[_Parameter]:
    """Parameters in the order in which a reducer numbers them."""
    ignored = set(getattr(model, "parameters_to_ignore", ()))
    return [
        _Parameter(name, parameter.numel() * parameter.element_size())
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def _bucket(number: int, parameters: list[_Parameter]) -> _Bucket:
    size = sum(parameter.size_bytes for parameter in parameters)
    return _Bucket(f"bucket {number}", size, tuple(parameter.name for parameter in parameters))
