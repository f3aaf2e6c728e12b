"""Functions that turn a problem and measured costs into a plan; none of them talks to other ranks."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["bitwidth", "cache", "collective", "fusion", "placement"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module(f"{__name__}.{name}")
