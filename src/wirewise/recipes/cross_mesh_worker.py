"""One rank of a run of reshard plans: `-m wirewise.recipes.cross_mesh_worker FOLDER`."""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from wirewise.lab.counters import interface_bytes
from wirewise.plans import LaidOutTensor
from wirewise.recipes.cross_mesh_job import ReshardJob
from wirewise.results import MovedTimes
from wirewise.runtime.pipeline.reshard import Resharder
from wirewise.runtime.pipeline.shards import part_of, same_bits
from wirewise.trials.rank import Rank, main
from wirewise.trials.windows import turns

__all__ = ["work"]


def work(rank: Rank[ReshardJob]) -> None:
    """Move the tensors under all plans in turns; the first move of each is not counted."""
    job, transport = rank.job, rank.transport
    movers = {name: Resharder(plan, transport) for name, plan in job.plans.items()}
    tensors = job.first.tensors
    wholes = [numbers(one) for one in tensors]
    given = [part_of(whole, one.source, transport.rank) for whole, one in zip(wholes, tensors, strict=True)]
    wanted = [part_of(whole, one.target, transport.rank) for whole, one in zip(wholes, tensors, strict=True)]
    del wholes
    found = {name: MovedTimes(seconds=[], equal=True, received_bytes=[], sent_bytes=[]) for name in movers}
    for number, name in turns(list(movers), job.turns + 1):
        transport.barrier("the start of a move")
        before, start = interface_bytes(), time.perf_counter()
        after = movers[name](given)
        seconds = time.perf_counter() - start
        # What was sent may still be in a socket's buffer.
        transport.barrier("the end of a move")
        passed = interface_bytes()
        same = all(want is None or same_bits(got, want) for got, want in zip(after, wanted, strict=True))
        counted = [0, 0] if before is None or passed is None else list(_between(before, passed))
        slowest = float(transport.slowest(seconds))
        equal = bool(transport.slowest(float(not same)) == 0)
        gathered = transport.all_gather(torch.tensor(counted), "counters of interfaces")
        if number:
            own = found[name]
            own.seconds.append(slowest)
            own.equal &= equal
            own.received_bytes[:] = [int(one[0]) for one in gathered]
            own.sent_bytes[:] = [int(one[1]) for one in gathered]
            rank.log(f"{name}: {slowest:.4f} s")
    rank.outcome(found)


def _between(before: object, after: object) -> tuple[int, int]:
    passed = after - before  # type: ignore[operator]
    return passed.rx_bytes, passed.tx_bytes


def numbers(one: LaidOutTensor) -> Tensor:
    """A tensor whose elements tell where they belong."""
    count = torch.Size(one.shape).numel()
    whole = torch.arange(count) * 7 % 251
    return whole.to(getattr(torch, one.dtype)).reshape(one.shape)


if __name__ == "__main__":
    main(ReshardJob, work, sys.argv[1])
