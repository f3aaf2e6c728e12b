"""Data-parallel training under a fusion plan: buckets, chunks, recomputation, algorithms, and a closed loop."""

from wirewise.runtime.data_parallel.ddp import HookState, bucket_caps, hook
from wirewise.runtime.data_parallel.parallel import DataParallel, parallel
from wirewise.runtime.data_parallel.reducer import Reducer, transport_of

__all__ = ["DataParallel", "HookState", "Reducer", "bucket_caps", "hook", "parallel", "transport_of"]
