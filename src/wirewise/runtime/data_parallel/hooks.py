"""Hooks on parameters that do not keep their callee alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import nn

__all__ = ["WeakHook"]


class WeakHook:
    """Bound method as a hook, which does nothing once its object is gone.

    torch stores parameter hooks in C++, where Python's collector sees no cycle: an object that holds the parameter or
    the model, and whose method is a hook, would live until the process ends.

    Args:
        method: Bound method, called with the parameter whose gradient is ready.
    """

    def __init__(self, method: Callable[[nn.Parameter], None]) -> None:
        self._method = WeakMethod(method)
        self.owner: type[Any] = type(method.__self__)  # type: ignore[attr-defined]
        """Class of the object."""

    def __call__(self, parameter: nn.Parameter) -> None:
        """The gradient of a parameter is there."""
        if (method := self._method()) is not None:
            method(parameter)
