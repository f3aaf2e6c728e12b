"""Python state of a model, invisible to torch's tracers: random numbers, counters, attributes that a pass changes.

A tracer runs the forward pass once. State that the pass reads and changes, other than tensors of parameters, buffers
and the batch, would keep its traced value in every later step. Such a model is refused, with the line that changes
it.
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx, nn

from wirewise.errors import InputError
from wirewise.runtime.refusals import is_users_file, line_of

__all__ = ["TRACING", "PythonState", "UntracedStateError", "refuse_changes", "trace_stable"]

T = TypeVar("T")

TRACING = threading.Lock()
"""Lock held while torch traces, as ranks that are threads share the state of its tracers.

`torch.fx` replaces `nn.Module.__call__` for all threads. If two traces overlap, the one that ends last restores the
other's replacement, and every model of the process then fails.
"""

_OWN = frozenset(vars(nn.Module())) | {"forward", "training"}
"""Attributes that torch keeps in every module, and what stands in for a forward pass while it is traced."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_DEEP, _LONG = 3, 1000
"""How far containers are looked into; what lies deeper, or is longer, is compared by identity."""


class UntracedStateError(InputError):
    """Error for a forward pass that changes state invisible to a tracer."""


class _Held(NamedTuple):
    """A tensor by its identity; another one in its place is another value."""

    number: int


class PythonState:
    """Snapshot of state that a forward pass might carry from step to step, invisible to a tracer.

    Args:
        model: Model whose modules' and classes' attributes are included.
        functions: Further functions of a step, such as the loss, whose closures and globals are included, like those
            of the forward passes.
    """

    def __init__(self, model: nn.Module, functions: Iterable[Any] = ()) -> None:
        self._model, self._functions = model, list(functions)
        self._kept = [(module, dict(vars(module))) for module in model.modules()]
        self.values = {name: read() for name, read in self.readers()}

    def readers(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Names of the state, with functions that read its current value."""
        yield "Python's random numbers (random)", lambda: random.getstate()
        if "numpy" in sys.modules:
            yield (
                "NumPy's random numbers (numpy.random)",
                lambda: _printed(sys.modules["numpy"].random.get_state()),
            )
        for path, module in self._model.named_modules():
            if _is_torchs(type(module)):
                continue
            for name in vars(module).keys() - _OWN:
                yield ".".join(filter(None, (path, name))), partial(_attribute, module, name)
        for kind in {type(module) for module in self._model.modules()}:
            if not _is_torchs(kind):
                yield from self._of_class(kind)
        for function in self._functions:
            yield from _of_function(function)

    @staticmethod
    def _of_class(kind: type) -> Iterator[tuple[str, Callable[[], Any]]]:
        for name, value in list(vars(kind).items()):
            if not name.startswith("__") and not callable(value):
                yield f"{kind.__name__}.{name}", partial(_attribute, kind, name)
        yield from _of_function(getattr(kind, "forward", None))

    def changed_names(self, later: PythonState) -> list[str]:
        """Names that changed or are new in a later snapshot."""
        missing = object()
        return [name for name, value in later.values.items() if self.values.get(name, missing) != value]

    def changed_values(self, later: PythonState) -> list[str]:
        """Names that changed and are not newly set tensors."""
        return [name for name in self.changed_names(later) if not _is_tensor(later.values[name])]

    def restore(self) -> None:
        """Restore the attributes of all modules."""
        for module, own in self._kept:
            forward = vars(module).get("forward")
            vars(module).clear()
            vars(module).update(own)
            if forward is not None:
                vars(module)["forward"] = forward


def trace_stable(
    model: nn.Module,
    functions: Iterable[Any],
    trace: Callable[[], T],
    code: Callable[[T], str],
    run: Callable[[], Any] | None = None,
    *,
    tensors: bool = True,
) -> T:
    """Trace a model, and check that its trace would be the same in the next step.

    Attributes of modules are restored. Values cached in the first pass, such as position tables, are not state; nor
    are tensors that a pass sets before it reads them.

    Args:
        model: Model to trace.
        functions: Further functions of the step.
        trace: Function that traces the step.
        code: Function that returns the trace as text.
        run: Function that runs the forward pass on real tensors. None if the model has none.
        tensors: Whether to include tensors in attributes; otherwise the tracer handles them.

    Raises:
        InputError: The forward pass changes state; the message names it and the line.
    """
    functions = list(functions)
    first = PythonState(model, functions)
    found = trace()
    after = PythonState(model, functions)
    if not (first.changed_names(after) if tensors else first.changed_values(after)):
        return found
    try:
        if run is not None:
            first.restore()
            run()
        second = PythonState(model, functions)
        again = trace()
        third = PythonState(model, functions)
        changed = second.changed_names(third)
        moving = second.changed_values(third)
        if moving or (changed and code(again) != code(found)):
            raise _refusal(model, functions, moving or changed, run or trace)
        return again
    finally:
        first.restore()


@contextmanager
def refuse_changes(model: nn.Module, label: str) -> Iterator[None]:
    """Raise if the forward passes inside change state that would not be replayed.

    Args:
        model: Module to run.
        label: Reason why it must not change any state.

    Raises:
        InputError: State changed; the message names it.
    """
    before = PythonState(model)
    yield
    if changed := before.changed_names(PythonState(model)):
        raise InputError(
            f"the forward pass of {type(model).__name__} changes {', '.join(changed[:4])}, and {label}"
        )


def _refusal(model: nn.Module, functions: list[Any], names: list[str], run: Callable[[], Any]) -> InputError:
    line = _line_that_changes(model, functions, set(names), run)
    return UntracedStateError(
        f"the forward pass of {type(model).__name__} changes {', '.join(names[:4])}{f' at {line}' if line else ''}, "
        "which a captured step does once, when it is captured, and never again; expected state in buffers, changed by "
        "torch's operations, and random numbers of torch: register_buffer it, or decide outside of the forward pass"
    )


def _line_that_changes(
    model: nn.Module, functions: list[Any], names: set[str], run: Callable[[], Any]
) -> str:
    """The user's line after which some state is another; nothing where it is not found."""
    readers = [read for name, read in PythonState(model, functions).readers() if name in names]
    before, last, found = [read() for read in readers], ("", 0), list[str]()

    def look(frame: Any, event: str, _: Any) -> Any:
        nonlocal last
        if found or not is_users_file(frame.f_code.co_filename):
            return None if event == "call" else look
        if last[1] and [read() for read in readers] != before:
            found.append(line_of(*last))
            return None
        last = (frame.f_code.co_filename, frame.f_lineno) if event == "line" else last
        return look

    tracer, collecting = sys.gettrace(), gc.isenabled()
    # Callbacks of the garbage collector may run between two lines of the model.
    gc.disable()
    sys.settrace(look)
    try:
        run()
    except Exception:  # what it changes was seen, or not, by then
        pass
    finally:
        sys.settrace(tracer)
        if collecting:
            gc.enable()
    return found[0] if found else ""


def _of_function(function: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Values of a function's closure, and globals that its code names."""
    code = getattr(function, "__code__", None)
    if code is None or not is_users_file(code.co_filename):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield f"{function.__qualname__}.{name}", partial(_content, cell)
    own: Mapping[str, Any] = function.__globals__
    for name in code.co_names:
        if name in own and not callable(own[name]) and not isinstance(own[name], ModuleType):
            yield f"{function.__module__}.{name}", partial(_global, own, name)


def _attribute(owner: Any, name: str) -> Any:
    return _read(vars(owner).get(name))


def _global(owner: Mapping[str, Any], name: str) -> Any:
    return _read(owner.get(name))


def _content(cell: Any) -> Any:
    try:
        return _read(cell.cell_contents)
    except ValueError:  # empty
        return None


def _read(value: Any, depth: int = _DEEP) -> Any:
    """A value that can be compared with what it is later."""
    if isinstance(value, _PLAIN):
        return (type(value).__name__, value) if value == value else "nan"
    if isinstance(value, Tensor | fx.Proxy | weakref.ref):
        return _Held(id(value))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, itertools.count):
        return repr(value)
    if _is_numpys(value):
        return _printed(value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state())
    if depth and isinstance(value, list | tuple | set | frozenset | dict) and len(value) <= _LONG:
        entries = value.items() if isinstance(value, dict) else value
        return (type(value).__name__, [_read(one, depth - 1) for one in entries])
    if depth and (own := _record_of(value)) is not None:
        return (id(value), [(name, _read(one, depth - 1)) for name, one in own.items()])
    return id(value)


def _is_torchs(kind: type) -> bool:
    """Whether a class is one of torch's own, whose passes keep no state in attributes but lists of weights."""
    return kind.__module__.partition(".")[0] == "torch"


def _is_numpys(value: Any) -> bool:
    return type(value).__module__.startswith("numpy.random") and type(value).__name__ in (
        "Generator",
        "RandomState",
    )


def _record_of(value: Any) -> dict[str, Any] | None:
    """Attributes of a plain object, past what its class does when they are asked for; None if it is something else."""
    if isinstance(value, nn.Module | type | ModuleType) or callable(value):
        return None
    if type(value).__module__.partition(".")[0] in ("torch", "builtins", "logging"):
        return None
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return None


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or a container of nothing else that can change."""
    if isinstance(value, _Held):
        return True
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], list):
        return any(_is_tensor(one) for one in value[1])
    return False


def _printed(state: Any) -> str:
    """A state with arrays, whole."""
    if isinstance(state, dict):
        return repr({name: _printed(one) for name, one in state.items()})
    if isinstance(state, tuple):
        return repr([_printed(one) for one in state])
    return repr(state.tobytes()) if hasattr(state, "tobytes") else repr(state)
