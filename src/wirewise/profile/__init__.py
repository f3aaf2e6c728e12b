"""Recording and measuring training jobs: traces of scripts, and stalls."""

from typing import Any

__all__ = ["Tracer", "memory_sizes", "stage_trace"]


def __getattr__(name: str) -> Any:
    # Needs torch, which takes seconds to import.
    if name == "Tracer":
        from wirewise.profile.tracer import Tracer

        return Tracer
    if name == "memory_sizes":
        from wirewise.profile.memory import memory_sizes

        return memory_sizes
    if name == "stage_trace":
        from wirewise.profile.stages import stage_trace

        return stage_trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
