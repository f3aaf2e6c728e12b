"""Measure, predict, plan and run the communication of distributed PyTorch training.

Subpackages load when they are first used, and PyTorch only where a runtime needs it:

    import wirewise as ww
    topology = ww.topology.load("cluster.toml")
"""

from __future__ import annotations

import importlib
from types import ModuleType

# Type checkers know the name; importing typing takes longer than all the rest here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from wirewise import (
        codec,
        collective,
        cost,
        graph,
        lab,
        planners,
        plans,
        profile,
        report,
        runtime,
        sim,
        topology,
        trace,
    )

__all__ = [
    "__version__",
    "codec",
    "collective",
    "cost",
    "graph",
    "lab",
    "planners",
    "plans",
    "profile",
    "report",
    "runtime",
    "sim",
    "topology",
    "trace",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__[1:])}"
        )
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
