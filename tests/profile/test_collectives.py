"""Collectives and messages of all kinds, recorded."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from tests.harness.processes import run_ranks_as_processes

from wirewise.profile import Tracer
from wirewise.trace import align, match, read


def calls(rank: int, folder: str) -> None:
    tracer = Tracer(folder, warmup=0, steps=None, round_trips=5)
    x = torch.ones(30)
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    dist.all_gather([torch.empty(30) for _ in range(3)], x)
    rows = [1, 2, 3]
    dist.all_to_all_single(torch.empty(3 * rows[rank], 2), torch.empty(6, 2), [rows[rank]] * 3, rows)
    dist.barrier()
    work = dist.isend(x, 1, tag=7) if rank == 0 else dist.irecv(x, 0, tag=7) if rank == 1 else None
    if work is not None:
        work.wait()
    two = dist.new_group([0, 2])
    if rank != 1:
        later = dist.all_reduce(x, group=two, async_op=True)
        time.sleep(0.01)
        later.wait()
    tracer.step()
    tracer.close()


@pytest.mark.dist
def test_all_kinds_of_calls(tmp_path):
    run_ranks_as_processes(3, calls, str(tmp_path))
    trace = align(read(tmp_path))
    found = {(one.collective, one.ranks): one for one in match(trace)}
    everyone = (0, 1, 2)
    assert {k for k in found if k[0] != "send"} >= {
        (name, everyone) for name in ("all_reduce", "broadcast", "all_gather", "all_to_all", "barrier")
    } | {("all_reduce", (0, 2))}
    assert found["send", (0, 1)].size_bytes == 120
    assert found["broadcast", everyone].ops[0].peer == 1
    assert [op.split_bytes for op in found["all_to_all", everyone].ops] == [(8, 16, 24)] * 3
    late = found["all_reduce", (0, 2)]
    wait = next(op for op in trace.ranks[0].ops if op.kind == "wait" and op.group == late.group)
    assert wait.seq == late.seq
    assert wait.start_s - late.ops[0].start_s >= 0.009
