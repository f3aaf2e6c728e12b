"""Hooks on parameters that do not keep alive whom they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import nn

__all__ = ["WeakHook"]


class WeakHook:
    """A method as a hook, which does nothing once its object is gone.

    torch holds hooks of parameters in C++, where Python's collector sees no cycle: an object whose method is a hook and
    that has the parameter, or the model, would stay until the process ends.

    Args:
        method: Bound method, called with the parameter whose gradient is there.
    """

    def __init__(self, method: Callable[[nn.Parameter], None]) -> None:
        self._method = WeakMethod(method)
        self.owner: type[Any] = type(method.__self__)  # type: ignore[attr-defined]
        """Class of the object."""

    def __call__(self, parameter: nn.Parameter) -> None:
        """The gradient of a parameter is there."""
        if (method := self._method()) is not None:
            method(parameter)
