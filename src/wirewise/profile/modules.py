"""Forward ops of a model's modules, and backward ops from one ready gradient to the next.

Hooks on the backward pass of modules would change the graph of autograd, so backward ops are seen by their
results: an op lasts until the gradients of a module's parameters are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from wirewise.instruments import observer
from wirewise.profile.clock import Mark
from wirewise.profile.recorder import Recorder

__all__ = ["BackwardPass", "ForwardPasses", "ModuleHooks"]

_OPAQUE = ("OptimizedModule", "ScriptModule", "RecursiveScriptModule")
"""Compiled modules, whose inside no hook should see."""

# By name: a plan may have put a class of its own in the place of torch's.
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


class BackwardPass:
    """Splitter of a backward pass at ready gradients.

    Args:
        recorder: Recorder of the ops.
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
        """Whether a pass is running."""
        return self._begin is not None

    def begin(self) -> None:
        """Mark the start of the pass."""
        self._begin = self._start = self._recorder.mark()
        self._end = None

    def ready(self, name: str, size_bytes: int) -> None:
        """Handle a ready gradient of the module `name`."""
        if self._start is None:
            return
        if self._end is not None and name != self._name:
            self.cut()
            self._start = self._last
        self._name, self._end = name, self._recorder.mark()
        self._size_bytes += size_bytes

    def cut(self) -> None:
        """End the current op with the last ready gradient."""
        if self._start is None or self._end is None:
            return
        key = (self._name, self._size_bytes)
        if key not in self._forms:
            self._forms[key] = self._recorder.form(self._name, "backward", gradient_bytes=self._size_bytes)
        self._recorder.add(self._forms[key], self._start, self._end)
        self._last, self._end, self._size_bytes = self._end, None, 0

    def end(self) -> tuple[Mark, Mark] | None:
        """End the pass; returns the end of its last op and its own end."""
        if self._begin is None or self._start is None:
            return None
        begin, now = self._begin, self._recorder.mark()
        self._last = self._start
        self.cut()
        self._begin = self._start = None
        self._recorder.add(self._whole, begin, now)
        return self._last, now


class ForwardPasses:
    """Recording of the forward passes of modules, by hooks for all modules of the process.

    Hooks on a module itself would be in its copies and its TorchScript, and keep `torch.save` from writing it.

    Args:
        recorder: Recorder of the ops.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watched: dict[int, tuple[nn.Module, int, Callable[[nn.Module], None] | None]] = {}
        """Module, form of its op and listener by id of the module, which lives as long as its entry."""
        self._starts: dict[int, Mark] = {}
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._behind),
        ]

    def watch(self, module: nn.Module, name: str, called: Callable[[nn.Module], None] | None = None) -> None:
        """Record the forward passes of a module under a name, and call `called` when one starts."""
        # A module with several names goes by the first.
        self._watched.setdefault(id(module), (module, self._recorder.form(name, "forward"), called))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._watched.clear()

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        # A compiler that captures a module would break its graph at the clock.
        if torch.compiler.is_compiling() or (known := self._watched.get(id(module))) is None:
            return
        if known[2] is not None:
            known[2](module)
        if self._recorder.active and self._recorder.has_room:
            # An exception may have kept the hook behind from running.
            self._starts[id(module)] = self._recorder.mark()

    def _behind(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        start = self._starts.pop(id(module), None)
        if start is not None and (known := self._watched.get(id(module))) is not None:
            self._recorder.add(known[1], start, self._recorder.mark())


class ModuleHooks:
    """Hooks on a model.

    Args:
        model: Any module, wrapped in DistributedDataParallel or not.
        recorder: Recorder of the ops.
        forward: Recording of forward passes.
        backward: Handler of gradients.
        name: Prefix of the names of its parts, if a job has several models.
        called: Called with the model when its forward pass starts.
    """

    def __init__(
        self,
        model: nn.Module,
        recorder: Recorder,
        forward: ForwardPasses,
        backward: BackwardPass,
        name: str = "",
        called: Callable[[nn.Module], None] | None = None,
    ) -> None:
        self.model, self._recorder, self._backward = model, recorder, backward
        self._handles: list[Any] = []
        self._frozen: list[tuple[str, nn.Parameter]] = []
        """Parameters that no gradient is computed for, with the name of their module."""
        inner = model.module if type(model).__name__ in _WRAPPERS else model
        assert isinstance(inner, nn.Module)
        forward.watch(model, name or "forward", called)
        for part, module in _parts(inner, name):
            if module is not model:
                forward.watch(module, part)
        self._collect_parameters(inner, name)
        self.watch_unfrozen()

    def watch_unfrozen(self) -> None:
        """Watch the gradients of parameters unfrozen since; a GAN freezes its models alternately."""
        frozen = []
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                hook = observer(self._ready(name, parameter.numel() * parameter.element_size()))
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
            else:
                frozen.append((name, parameter))
        self._frozen = frozen

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

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
