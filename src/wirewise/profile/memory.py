"""Memory of a training step, by tensors: live bytes at any time, and bytes that each module saves for backward.

Storages are counted once, however many tensors share them; allocator overhead is not counted.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wirewise.errors import InputError

__all__ = ["LiveBytes", "memory_sizes"]


class LiveBytes(TorchDispatchMode):
    """Live bytes of all storages created under the mode, and of given ones.

    Kernel-internal workspace is not seen.

    Args:
        tensors: Tensors that exist already.
    """

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.bytes = self.peak_bytes = 0
        self._known: set[int] = set()
        self.add(tensors)

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count these tensors too."""
        for tensor in tensors:
            self._add(tensor)

    def restart(self) -> int:
        """Return the peak so far, and restart it from the bytes alive now."""
        peak, self.peak_bytes = self.peak_bytes, self.bytes
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op and count what it made."""
        result = func(*args, **(kwargs or {}))
        self.add(_tensors(result))
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = _key(tensor), storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            weakref.finalize(storage, self._gone, key, size).atexit = False
            self.bytes += size
            self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def memory_sizes(
    model: nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    bfloat16: bool = False,
) -> dict[str, dict[str, Any]]:
    """Measure the memory that each module saves for backward, in two forward passes and a backward one.

    Written as JSON, `wirewise plan fusion --memory-sizes FILE` reads the result. Modules are those that hold
    parameters themselves, as in a trace; memory of others counts for the module that ran before. A storage saved by
    several counts for the first. Gradients are left unchanged; buffers see the batch twice.

    Args:
        model: Model in training, on its device; DistributedDataParallel is unwrapped.
        batch: Input of the model: a tensor, or the arguments as a tuple, or as a dict by name.
        loss: Loss of the output. Defaults to the sum of all its floating-point tensors.
        bfloat16: Also measure under autocast.

    Returns:
        Sizes by module, in bytes: saved_bytes, including its input if saved; input_bytes, what remains with
        recomputation; workspace_bytes, the additional memory of its backward pass; bfloat16_bytes, the three under
        autocast without its weight copies, if requested.

    Raises:
        InputError: No parameter is trained, or the loss does not depend on any.
    """
    inner: Any = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    owners = {name or "model": part for name, part in inner.named_modules() if _trained(part)}
    if not owners:
        raise InputError("got a model without a trained parameter; set requires_grad on those that train")
    before = {p: p.grad for p in inner.parameters()}
    inner.zero_grad()
    try:
        found = _measured(inner, owners, batch, loss or _sum, False)
        less = _measured(inner, owners, batch, loss or _sum, True) if bfloat16 else {}
    finally:
        for parameter, gradient in before.items():
            parameter.grad = gradient
    names = ("saved_bytes", "input_bytes", "workspace_bytes")
    sizes: dict[str, dict[str, Any]] = {m: dict(zip(names, own, strict=True)) for m, own in found.items()}
    for name, own in less.items():
        sizes[name]["bfloat16_bytes"] = list(own)
    return sizes


def _measured(
    model: nn.Module,
    owners: Mapping[str, nn.Module],
    batch: Any,
    loss: Callable[[Any], Tensor],
    bfloat16: bool,
) -> dict[str, tuple[float, float, float]]:
    """Saved, input and workspace bytes by module."""
    counted = _Count(model, owners, batch, bfloat16)
    # Apart, so that hooks on saved tensors hold nothing longer.
    with counted.saved(), _autocast(model, bfloat16):
        loss(_called(model, batch))
    with counted.workspace() as live:
        with _autocast(model, bfloat16):
            value = loss(_called(model, batch))
        live.restart()
        _backward(value)
    return counted.sizes()


def _autocast(model: nn.Module, bfloat16: bool) -> AbstractContextManager[Any]:
    device = next(model.parameters()).device.type
    return torch.autocast(device, dtype=torch.bfloat16) if bfloat16 else nullcontext()


class _Count:
    """Attributes storages to modules while a step runs.

    Args:
        model: All of it.
        owners: Modules by name.
        batch: Input of the model.
        bfloat16: Under autocast, whose copies of weights count as theirs.
    """

    def __init__(self, model: nn.Module, owners: Mapping[str, nn.Module], batch: Any, bfloat16: bool) -> None:
        self._owners, self._batch, self._bfloat16 = owners, batch, bfloat16
        self._order: list[str] = []
        """Modules as they ran."""
        self._active: list[str] = []
        self._saved, self._input, self._workspace, self._copies = (
            dict.fromkeys(owners, 0.0) for _ in range(4)
        )
        self._always = [*model.parameters(), *model.buffers()]
        self._seen = set(map(_key, self._always))

    def sizes(self) -> dict[str, tuple[float, float, float]]:
        """Saved, input and workspace bytes by module."""
        return {name: (self._saved[name], self._input[name], self._workspace[name]) for name in self._order}

    @contextmanager
    def saved(self) -> Iterator[None]:
        """A forward pass inside tells what is kept."""
        handles = [handle for name, part in self._owners.items() for handle in self._watch(name, part)]
        try:
            with saved_tensors_hooks(self._pack, lambda tensor: tensor):
                yield
        finally:
            _remove(handles)

    @contextmanager
    def workspace(self) -> Iterator[LiveBytes]:
        """A step inside, `restart`ed before its backward pass, tells what that takes beside."""
        live = LiveBytes(self._always)
        always_bytes = live.bytes
        live.add(_tensors(self._batch))
        missing = Counter({name: len(_trained(self._owners[name])) for name in self._order})
        handles = [
            parameter.register_post_accumulate_grad_hook(
                partial(self._ready, live, always_bytes, missing, name)
            )
            for name in self._order
            for parameter in _trained(self._owners[name])
        ]
        try:
            with live:
                yield live
        finally:
            _remove(handles)

    def _watch(self, name: str, part: nn.Module) -> list[Any]:
        def begins(_part: nn.Module, args: Any, kwargs: Any) -> None:
            if name not in self._order:
                self._order.append(name)
            self._active.append(name)
            # Kept as arguments where the module is computed again.
            inputs = {_key(t): t.untyped_storage().nbytes() for t in _tensors((args, kwargs))}
            self._input[name] += sum(size for key, size in inputs.items() if key not in self._seen)

        def ends(*_: Any) -> None:
            self._active.pop()

        return [
            part.register_forward_pre_hook(begins, with_kwargs=True, prepend=True),
            part.register_forward_hook(ends, always_call=True),
        ]

    def _pack(self, tensor: Tensor) -> Tensor:
        if _key(tensor) not in self._seen:
            self._seen.add(_key(tensor))
            size = tensor.untyped_storage().nbytes()
            owner = (self._active or self._order or list(self._owners))[-1 if self._order else 0]
            if self._bfloat16 and _is_copy(tensor):
                self._copies[owner] += size
                return tensor
            self._saved[owner] += size
            if not self._active:
                self._input[owner] += size
        return tensor

    def _ready(self, live: LiveBytes, held: int, missing: Counter[str], name: str, parameter: Tensor) -> None:
        # It lives on in a bucket, which is there all the time.
        parameter.grad = None
        missing[name] -= 1
        if missing[name] == 0:
            before = self._order[: self._order.index(name) + 1]
            kept = sum(self._saved[one] + self._copies[one] for one in before)
            self._workspace[name] = max(live.restart() - held - kept, 0.0)


def _is_copy(tensor: Tensor) -> bool:
    """Whether it was made of a parameter alone."""
    node: Any = tensor.grad_fn
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return isinstance(getattr(node, "variable", None), nn.Parameter)


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _trained(part: nn.Module) -> list[nn.Parameter]:
    return [p for p in part.parameters(recurse=False) if p.requires_grad]


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


def _called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, Sequence) else model(batch)


def _sum(output: Any) -> Tensor:
    parts = [one.sum() for one in _tensors(output) if one.is_floating_point()]
    return torch.stack(parts).sum() if parts else torch.zeros(())


def _backward(value: Tensor) -> None:
    if not value.requires_grad:
        raise InputError(
            "the loss does not depend on a trained parameter; check that the model is not run under no_grad, "
            "or give the loss of its output"
        )
    value.backward()
