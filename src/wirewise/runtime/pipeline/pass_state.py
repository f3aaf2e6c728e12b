"""State changed by a forward pass besides its outputs, so that recomputation starts from the same state."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.runtime.python_state import PythonState

__all__ = ["PassState", "PrePassState"]

_Slot = tuple[nn.Module, str]


class PrePassState(NamedTuple):
    """State before a forward pass."""

    buffers: dict[_Slot, Tensor]
    """Copies of the buffers that passes change, such as running means."""
    random: Any
    """Python's random numbers, and NumPy's."""


class PassState:
    """Buffers of some modules, and states of random number generators outside torch.

    A recomputed pass would count its rows twice in running means, and would use other random numbers than the first
    time.

    Args:
        modules: Modules of a stage.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = nn.ModuleList(modules)
        self._slots: list[_Slot] = [(m, name) for m in self._modules.modules() for name in m._buffers]
        self._changing: set[_Slot] | None = None
        """Buffers that the first pass changed; None if there was none yet."""

    @contextmanager
    def first(self) -> Iterator[PrePassState]:
        """Run a forward pass that will be recomputed; yields the state before it.

        Raises:
            InputError: The pass changes attributes of modules, or a buffer that the first pass did not change.
        """
        slots = self._slots if self._changing is None else self._changing
        before = PrePassState(
            {slot: _buffer(slot).clone() for slot in slots if _buffer(slot) is not None}, _drawn()
        )
        marks = [_mark(_buffer(slot)) for slot in self._slots]
        state = PythonState(self._modules) if self._changing is None else None
        yield before
        changed = {s for s, mark in zip(self._slots, marks, strict=True) if _mark(_buffer(s)) != mark}
        if state is not None:
            self._check(state)
            # By their values: batch norms write running means without counting a version.
            self._changing = changed | {s for s, one in before.buffers.items() if not _same(one, _buffer(s))}
            for slot in before.buffers.keys() - self._changing:
                del before.buffers[slot]
        elif more := changed - (self._changing or set()):
            raise InputError(
                f"the buffer {next(iter(more))[1]!r} changes in some microbatches and not in the first, and "
                "activations are computed again; expected the same in each: give a plan without recompute"
            )

    def _check(self, before: PythonState) -> None:
        moving = [
            name for name in before.changed_values(PythonState(self._modules)) if "random numbers" not in name
        ]
        if moving:
            raise InputError(
                f"the forward pass changes {', '.join(moving[:4])}, and activations are computed again, which would "
                "change it twice; expected state in buffers, or a plan without recompute"
            )

    @contextmanager
    def recompute(self, before: PrePassState) -> Iterator[None]:
        """Recompute a forward pass from its first state; the current state is restored afterwards."""
        now, drawn = {slot: _buffer(slot) for slot in before.buffers}, _drawn()
        _put(before.buffers)
        _draw_from(before.random)
        try:
            yield
        finally:
            _put(now)
            _draw_from(drawn)


def _buffer(slot: _Slot) -> Any:
    return slot[0]._buffers[slot[1]]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _put(buffers: dict[_Slot, Tensor]) -> None:
    for (owner, name), buffer in buffers.items():
        owner._buffers[name] = buffer


def _mark(buffer: Tensor | None) -> tuple[int, int]:
    return (id(buffer), 0 if buffer is None else buffer._version)


def _drawn() -> Any:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _draw_from(state: Any) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])
