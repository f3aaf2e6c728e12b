"""The torch backend and the DDP hook: F7 without its times, and programs over torch's own messages."""

import datetime

import pytest
import torch
import torch.distributed as dist

from tests.harness.processes import run_ranks_as_processes
from wirewise.collective.builders import build
from wirewise.errors import InputError
from wirewise.runtime import collective

pytestmark = pytest.mark.dist


def every_collective(rank):
    ranks = dist.get_world_size()
    group = dist.new_group(backend="wirewise")
    found = {}
    x = torch.arange(8.0) + rank
    dist.all_reduce(x, group=group)
    found["all_reduce"] = x.tolist()
    y = torch.full((3,), float(rank))
    dist.broadcast(y, 1, group=group)
    found["broadcast"] = y.tolist()
    z = torch.full((3,), float(rank + 1))
    dist.reduce(z, 0, dist.ReduceOp.MAX, group=group)
    found["reduce"] = z.tolist()
    parts = [torch.zeros(2) for _ in range(ranks)]
    dist.all_gather(parts, torch.full((2,), float(rank)), group=group)
    whole = torch.zeros(2 * ranks)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)), group=group)
    found["all_gather"] = torch.cat(parts).tolist(), whole.tolist()
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * ranks), group=group)
    other = torch.zeros(2)
    dist.reduce_scatter(other, list(torch.arange(2.0 * ranks).split(2)), group=group)
    found["reduce_scatter"] = out.tolist(), other.tolist()
    gathered = [torch.zeros(1) for _ in range(ranks)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), gathered, 0, group=group)
    found["gather"] = [t.item() for t in gathered or ()]
    got = torch.zeros(1)
    dist.scatter(got, [torch.tensor([10.0 * r]) for r in range(ranks)] if rank == 0 else None, 0, group=group)
    found["scatter"] = got.item()
    exchanged = torch.zeros(ranks)
    dist.all_to_all_single(exchanged, torch.arange(float(ranks)) + 10 * rank, group=group)
    outs = [torch.zeros(1) for _ in range(ranks)]
    dist.all_to_all(outs, [torch.tensor([float(10 * rank + t)]) for t in range(ranks)], group=group)
    uneven = torch.zeros(rank * ranks)
    dist.all_to_all_single(
        uneven, torch.arange(float(sum(range(ranks)))), [rank] * ranks, list(range(ranks)), group=group
    )
    found["all_to_all"] = exchanged.tolist(), torch.cat(outs).tolist(), uneven.tolist()
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    found["objects"] = objects
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.wait()
    dist.barrier(group=group)
    with pytest.raises(InputError, match="expected a contiguous one"):
        dist.send(torch.ones(2, 2).t(), (rank + 1) % ranks, group=group)
    with pytest.raises(InputError, match="expected 'wirewise'"):
        collective.group_of()
    found["bytes"] = sum(edge.size_bytes for edge in collective.group_of(group).statistics())
    return found


@pytest.mark.slow
def test_torch_collectives_run_on_the_backend():
    for rank, found in enumerate(run_ranks_as_processes(3, every_collective)):
        assert found["all_reduce"] == [3.0 * i + 3 for i in range(8)]
        assert found["broadcast"] == [1.0] * 3
        assert found["reduce"] == [3.0] * 3 if rank == 0 else [rank + 1.0] * 3
        assert found["all_gather"] == ([0.0, 0.0, 1.0, 1.0, 2.0, 2.0],) * 2
        assert found["reduce_scatter"] == ([6.0 * rank, 6.0 * rank + 3],) * 2
        assert found["gather"] == ([0.0, 1.0, 2.0] if rank == 0 else [])
        assert found["scatter"] == 10.0 * rank
        together = [10.0 * s + rank for s in range(3)]
        start = sum(range(rank))
        assert found["all_to_all"] == (together, together, [start + i * 1.0 for i in range(rank)] * 3)
        assert found["objects"] == [{"rank": r} for r in range(3)]
        assert found["bytes"] > 0


def as_default_group(rank, store):
    """The default group itself on the backend."""
    dist.destroy_process_group()
    dist.init_process_group(
        "wirewise",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=20),
    )
    group = collective.group_of()
    group.use(build("all_reduce", "ring", 2))
    x = torch.full((5,), rank + 1.0)
    dist.all_reduce(x)
    sent = [edge.messages for edge in group.statistics() if edge.source == rank]
    return x.tolist(), sent


def test_the_default_group_takes_programs(tmp_path):
    for x, sent in run_ranks_as_processes(2, as_default_group, str(tmp_path / "again")):
        assert x == [3.0] * 5
        assert sent == [2]
