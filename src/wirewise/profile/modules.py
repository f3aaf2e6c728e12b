"""Forward ops of a model's modules, and backward ops from one gradient that is ready to the next.

Hooks on the backward pass of modules would change the graph of autograd, so backward ops are seen by their
results: an op lasts until the gradients of a module's parameters are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from wirewise.profile.clock import Mark
from wirewise.profile.recorder import Recorder

__all__ = ["BackwardPass", "ModuleHooks"]

_OPAQUE = ("OptimizedModule", "ScriptModule", "RecursiveScriptModule")
"""Compiled modules, whose inside no hook should see."""

# By name: a plan may have put a class of its own in the place of torch's.
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


class BackwardPass:
    """Cuts a backward pass at gradients that get ready.

    Args:
        recorder: Takes the ops.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._whole = recorder.form("backward", "backward")
        self._forms: dict[tuple[str, int], int] = {}
        self._name = ""
        self._size_bytes = 0
        self._start: Mark | None = None
        self._end: Mark | None = None
        self._begin: Mark | None = None
        self._last: Mark = 0.0

    @property
    def running(self) -> bool:
        """Whether a pass is under way."""
        return self._begin is not None

    def begin(self) -> None:
        """The pass begins."""
        self._begin = self._start = self._recorder.mark()
        self._end = None

    def ready(self, name: str, size_bytes: int) -> None:
        """A gradient of the module `name` is there."""
        if self._start is None:
            return
        if self._end is not None and name != self._name:
            self.cut()
            self._start = self._last
        self._name, self._end = name, self._recorder.mark()
        self._size_bytes += size_bytes

    def cut(self) -> None:
        """End the op that is under way, with the last gradient that got ready."""
        if self._start is None or self._end is None:
            return
        key = (self._name, self._size_bytes)
        if key not in self._forms:
            self._forms[key] = self._recorder.form(self._name, "backward", gradient_bytes=self._size_bytes)
        self._recorder.add(self._forms[key], self._start, self._end)
        self._last, self._end, self._size_bytes = self._end, None, 0

    def end(self) -> tuple[Mark, Mark] | None:
        """The pass is over; returns when its last op was and when it was itself."""
        if self._begin is None or self._start is None:
            return None
        begin, now = self._begin, self._recorder.mark()
        self._last = self._start
        self.cut()
        self._begin = self._start = None
        self._recorder.add(self._whole, begin, now)
        return self._last, now


class ModuleHooks:
    """Hooks on a model.

    Args:
        model: Any module, wrapped in DistributedDataParallel or not.
        recorder: Takes the ops.
        backward: Hears of gradients.
        name: Stands before the names of its parts, where a job has several models.
        called: Called with the model when its forward pass begins.
    """

    def __init__(
        self,
        model: nn.Module,
        recorder: Recorder,
        backward: BackwardPass,
        name: str = "",
        called: Callable[[nn.Module], None] = lambda _: None,
    ) -> None:
        self.model, self._recorder, self._backward = model, recorder, backward
        self._handles: list[Any] = [model.register_forward_pre_hook(lambda module, _inputs: called(module))]
        self._frozen: list[tuple[str, nn.Parameter]] = []
        """Parameters that no gradient is computed for, with the name of their module."""
        inner = model.module if type(model).__name__ in _WRAPPERS else model
        assert isinstance(inner, nn.Module)
        self._watch_forward(model, name or "forward")
        for part, module in _parts(inner, name):
            if module is not model:
                self._watch_forward(module, part)
        self._collect_parameters(inner, name)
        self.watch_unfrozen()

    def watch_unfrozen(self) -> None:
        """Watch the gradients of parameters that require one by now; a GAN freezes its models in turn."""
        frozen = []
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                hook = self._ready(name, parameter.numel() * parameter.element_size())
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
            else:
                frozen.append((name, parameter))
        self._frozen = frozen

    def remove(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch_forward(self, module: nn.Module, name: str) -> None:
        recorder, form = self._recorder, self._recorder.form(name, "forward")
        start: list[Mark] = []

        def before(_module: nn.Module, _inputs: Any) -> None:
            if recorder.active:
                # An exception may have kept the hook behind from running.
                start[:] = [recorder.mark()]

        def behind(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            if start:
                recorder.add(form, start.pop(), recorder.mark())

        self._handles += [module.register_forward_pre_hook(before), module.register_forward_hook(behind)]

    def _collect_parameters(self, model: nn.Module, prefix: str) -> None:
        seen: set[int] = set()
        for name, module in model.named_modules(prefix=prefix):
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._frozen.append((name or "model", parameter))

    def _ready(self, name: str, size_bytes: int) -> Callable[[torch.Tensor], None]:
        recorder, backward = self._recorder, self._backward

        def hook(_parameter: torch.Tensor) -> None:
            if recorder.active:
                backward.ready(name, size_bytes)

        return hook


def _parts(model: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    """Modules that compute: those without children or with parameters of their own, and compiled ones."""
    children = [] if type(model).__name__ in _OPAQUE else list(model.named_children())
    own = any(True for _ in model.parameters(recurse=False))
    found = [(name or "model", model)] if own or not children else []
    for child, module in children:
        found += _parts(module, f"{name}.{child}" if name else child)
    return found
