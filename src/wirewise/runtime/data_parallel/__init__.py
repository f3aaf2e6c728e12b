"""Data-parallel training under a fusion plan: buckets, chunks, recomputation, algorithms, and online tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names
from wirewise.runtime.data_parallel.carrier import GroupSender, InFlightGroup
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.parallel import DataParallel, TrainingStep, parallel
from wirewise.runtime.data_parallel.pools import Pools, resize
from wirewise.runtime.data_parallel.reducer import Reducer
from wirewise.runtime.transport import transport_of

if TYPE_CHECKING:
    from wirewise.runtime.data_parallel.closed_loop import Trial, Tuner
    from wirewise.runtime.data_parallel.compiled import CompiledStep, compile_step
    from wirewise.runtime.data_parallel.ddp import HookState, bucket_caps, hook
    from wirewise.runtime.data_parallel.programs import AllReduce, Observer
    from wirewise.runtime.data_parallel.replanning import PlanSwap, Replanner

__all__ = [
    "AllReduce",
    "CompiledStep",
    "Compression",
    "DataParallel",
    "GroupSender",
    "HookState",
    "InFlightGroup",
    "Observer",
    "PlanSwap",
    "Pools",
    "Reducer",
    "Replanner",
    "TrainingStep",
    "Trial",
    "Tuner",
    "bucket_caps",
    "compile_step",
    "hook",
    "parallel",
    "resize",
    "transport_of",
]

# torch's compiler alone takes a second to import, and graph training needs the reducer only.
__getattr__ = lazy_names(
    __name__,
    {
        "closed_loop": ("Trial", "Tuner"),
        "compiled": ("CompiledStep", "compile_step"),
        "ddp": ("HookState", "bucket_caps", "hook"),
        "programs": ("AllReduce", "Observer"),
        "replanning": ("PlanSwap", "Replanner"),
    },
)
