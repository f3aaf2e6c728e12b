"""Data-parallel training under a fusion plan: buckets, chunks, recomputation, algorithms, and a closed loop."""

from wirewise.runtime.data_parallel.carrier import Carrier, Travelling
from wirewise.runtime.data_parallel.closed_loop import Trial, Tuner
from wirewise.runtime.data_parallel.compiled import CompiledStep, compile_step
from wirewise.runtime.data_parallel.compressed import int8_sum, top_k_sum
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.ddp import HookState, bucket_caps, hook
from wirewise.runtime.data_parallel.parallel import DataParallel, parallel
from wirewise.runtime.data_parallel.pools import Pools, resize
from wirewise.runtime.data_parallel.programs import AllReduce, Observer
from wirewise.runtime.data_parallel.reducer import Reducer, transport_of
from wirewise.runtime.data_parallel.replanning import Replanner

__all__ = [
    "AllReduce",
    "Carrier",
    "CompiledStep",
    "Compression",
    "DataParallel",
    "HookState",
    "Observer",
    "Pools",
    "Reducer",
    "Replanner",
    "Travelling",
    "Trial",
    "Tuner",
    "bucket_caps",
    "compile_step",
    "hook",
    "int8_sum",
    "parallel",
    "resize",
    "top_k_sum",
    "transport_of",
]
