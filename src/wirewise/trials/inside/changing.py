"""Changed arguments of an unmodified script's DataLoader, DistributedDataParallel and optimizer steps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from wirewise.errors import InputError
from wirewise.instruments import CHANGES

__all__ = ["GRAPH", "LOADER", "WRAPPER", "Calls", "change"]

LOADER = ("num_workers",)
GRAPH = ("graph_mode",)
WRAPPER = ("gradient_as_bucket_view", "static_graph", "bucket_cap_mb")
_ACCUMULATION = "accumulation"
_PREFETCHED = 4
"""Batches that each worker loads ahead if the script does not say; one that is late once is then not noticed."""


class Calls:
    """Intercepted calls of the script, and the changes made to them."""

    def __init__(self) -> None:
        self.workers: int | None = None
        """Workers of the loader that is iterated last. None before there is one."""
        self.wrapper: dict[str, Any] = {}
        """Arguments of the last model in DistributedDataParallel, as it is built. Empty before there is one."""
        self.changed: set[str] = set()
        """Changed arguments of calls that the script made."""
        self.refused: dict[str, str] = {}
        """Reasons of arguments that were left as they are."""


def change(arguments: Mapping[str, bool | int | float | str]) -> Calls:
    """Change arguments of the script's future calls; returns the intercepted calls.

    Args:
        arguments: `num_workers`: least number of workers of each DataLoader, which then persist and prefetch;
            `gradient_as_bucket_view`, `static_graph`, `bucket_cap_mb` of DistributedDataParallel; `accumulation`: calls
            of an optimizer's step of which one is executed, and of which only that one's gradients are exchanged;
            `graph_mode`: the mode of each `integrations.pyg.Job`.

    Raises:
        InputError: A name is unknown.
    """
    known = (*LOADER, *GRAPH, *WRAPPER, _ACCUMULATION)
    if unknown := [name for name in arguments if name not in known]:
        raise InputError(f"cannot change the argument {unknown[0]!r}; expected some of: {', '.join(known)}")
    calls = Calls()
    _change_loader(int(arguments.get("num_workers", 0)), calls)
    _change_wrapper({name: arguments[name] for name in WRAPPER if name in arguments}, calls)
    for name in GRAPH:
        if name in arguments:
            _change_graph(str(arguments[name]), calls)
    if _ACCUMULATION in arguments:
        _accumulate(int(arguments[_ACCUMULATION]), calls)
    return calls


def _wrap_init(owner: type, rearrange: Callable[[Any, dict[str, Any]], None]) -> None:
    """Call `rearrange` with the object and its arguments, defaults included, before each `__init__` of a class."""
    original: Any = owner.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        bound = signature.bind(self, *args, **options)
        bound.apply_defaults()
        rearrange(self, bound.arguments)
        original(*bound.args, **bound.kwargs)

    owner.__init__ = init  # type: ignore[misc]


def _change_loader(workers: int, calls: Calls) -> None:
    def rearrange(_loader: Any, given: dict[str, Any]) -> None:
        # A loader that is built from one of ours, as Accelerate does, has as many already.
        if given["num_workers"] >= workers:
            return
        if isinstance(given["dataset"], IterableDataset):
            calls.refused["num_workers"] = (
                "the dataset is an IterableDataset, of which each worker yields all samples unless it divides them"
            )
            return
        given["num_workers"], given["persistent_workers"] = workers, True
        given["prefetch_factor"] = given["prefetch_factor"] or _PREFETCHED
        calls.changed.add("num_workers")

    _wrap_init(DataLoader, rearrange)
    iterate: Any = DataLoader.__iter__

    @functools.wraps(iterate)
    def noted(loader: Any) -> Any:
        calls.workers = loader.num_workers
        return iterate(loader)

    DataLoader.__iter__ = noted  # type: ignore[method-assign]


def _change_graph(mode: str, calls: Calls) -> None:
    def changed(_mode: str) -> str:
        calls.changed.update(GRAPH)
        return mode

    CHANGES["graph_mode"] = changed


def _change_wrapper(changes: Mapping[str, bool | int | float | str], calls: Calls) -> None:
    def rearrange(_model: Any, given: dict[str, Any]) -> None:
        given.update(changes)
        calls.changed.update(changes)
        calls.wrapper = {name: given.get(name) for name in WRAPPER}

    _wrap_init(DistributedDataParallel, rearrange)


def _accumulate(times: int, calls: Calls) -> None:
    """Execute one of `times` steps of each optimizer, and exchange gradients for that one alone."""
    steps: dict[int, int] = {}
    """Calls of each optimizer's step."""

    def last() -> bool:
        """Whether the pass that runs now is the last one before a step that is executed."""
        # With several optimizers, as of a GAN, the first one's calls count.
        return (next(iter(steps.values()), 0) + 1) % times == 0

    def step(optimizer: Any, closure: Any = None, **options: Any) -> Any:
        steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1
        if steps[id(optimizer)] % times == 0:
            return type(optimizer).step(optimizer, closure, **options)
        # A closure has the backward pass.
        return None if closure is None else closure()

    def zero_grad(optimizer: Any, *args: Any, **options: Any) -> None:
        if steps.get(id(optimizer), 0) % times == 0:
            type(optimizer).zero_grad(optimizer, *args, **options)

    original: Any = Optimizer.__init__

    @functools.wraps(original)
    def init(optimizer: Any, *args: Any, **options: Any) -> None:
        original(optimizer, *args, **options)
        steps[id(optimizer)] = 0
        # Methods of their own: schedulers wrap what they find here.
        optimizer.step, optimizer.zero_grad = MethodType(step, optimizer), MethodType(zero_grad, optimizer)

    Optimizer.__init__ = init  # type: ignore[method-assign,assignment]
    forward: Any = DistributedDataParallel.forward

    @functools.wraps(forward)
    def exchanging(model: Any, *args: Any, **options: Any) -> Any:
        calls.changed.add(_ACCUMULATION)
        if last():
            return forward(model, *args, **options)
        # The forward pass settles whether the backward pass exchanges.
        with model.no_sync():
            return forward(model, *args, **options)

    DistributedDataParallel.forward = exchanging  # type: ignore[method-assign,assignment]
