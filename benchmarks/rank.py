"""What the benchmarks' workers share: a rank joins the others, and leaves together with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from wirewise.runtime import full_graph


@contextmanager
def joined() -> Iterator[full_graph.Transport]:
    """The transport of this rank, which computes on one thread, as each rank of a job does."""
    torch.set_num_threads(1)
    full_graph.keep_freed_memory()
    dist.init_process_group("gloo")
    transport = full_graph.Transport(
        dist.distributed_c10d._get_default_group(), store=dist.distributed_c10d._get_default_store()
    )
    yield transport
    # A rank that left earlier would look like one that died.
    transport.all_reduce(torch.zeros(1), "end")
    transport.close()
    dist.destroy_process_group()
