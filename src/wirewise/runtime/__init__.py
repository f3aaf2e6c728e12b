"""Execution of plans on torch process groups."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = [
    "collective",
    "data_parallel",
    "flows",
    "full_graph",
    "incremental",
    "jobs",
    "mini_batch",
    "parallel",
    "pipeline",
    "recovery",
    "transport",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module(f"{__name__}.{name}")
