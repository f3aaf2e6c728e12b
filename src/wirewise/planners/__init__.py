"""Functions that turn a problem and measured costs into a plan; none of them communicates with other ranks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirewise.planners import (
        bitwidth,
        cache,
        collective,
        fusion,
        jobs,
        parallel,
        pipeline,
        placement,
        recovery,
        reshard,
    )
    from wirewise.planners.faces import Planner
    from wirewise.planners.registry import PLANNERS, planner

__all__ = [
    "PLANNERS",
    "Planner",
    "bitwidth",
    "cache",
    "collective",
    "fusion",
    "jobs",
    "parallel",
    "pipeline",
    "placement",
    "planner",
    "recovery",
    "reshard",
]
_MODULES = {"PLANNERS": "registry", "Planner": "faces", "planner": "registry"}


def __getattr__(name: str) -> Any:
    # A planner of one family needs no other.
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return importlib.import_module(f"{__name__}.{name}")
