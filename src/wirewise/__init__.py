"""Measure, predict, plan and run the communication of distributed PyTorch training.

Subpackages load when they are first used, and PyTorch only where a runtime needs it:

    import wirewise as ww
    topology = ww.topology.load("cluster.toml")
"""

from __future__ import annotations

import importlib

# Type checkers know the name; importing typing takes longer than all the rest here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wirewise import (
        advice,
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
    from wirewise.advice.reading import advise
    from wirewise.profile.watching import watch

__all__ = [
    "__version__",
    "advice",
    "advise",
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
    "watch",
]

__version__ = "0.1.0"

_FUNCTIONS = {"advise": "advice.reading", "watch": "profile.watching"}
"""Modules of the functions among the names; the other names are subpackages."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__[1:])}"
        )
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
