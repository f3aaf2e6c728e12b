"""Every call of torch.distributed on the backend: what gloo makes of it, or refused by an error that says why."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.processes import run_ranks_as_processes
from wirewise.errors import InputError
from wirewise.runtime import collective

assert collective
pytestmark = [pytest.mark.dist, pytest.mark.slow]

RANKS = 3
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda flat: flat.view(RANKS, -1).clone(),
    "transposed": lambda flat: flat.view(-1, RANKS).clone().t(),
    "strided": lambda flat: flat.repeat_interleave(2).view(RANKS, -1)[:, ::2],
    "empty": lambda flat: flat[:0].view(RANKS, 0).clone(),
}
Call = Callable[[Tensor, Any, bool], tuple[Any, list[Tensor]]]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX,
       dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]  # fmt: skip


def all_gather(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = [torch.zeros_like(x) for _ in range(RANKS)]
    return dist.all_gather(found, x, group=group, async_op=async_op), found


def all_gather_into_tensor(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = torch.zeros(RANKS * x.shape[0], *x.shape[1:], dtype=x.dtype)
    return dist.all_gather_into_tensor(found, x, group=group, async_op=async_op), [found]


def gather(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = [torch.zeros_like(x) for _ in range(RANKS)] if dist.get_rank() == 1 else None
    return dist.gather(x, found, 1, group=group, async_op=async_op), found or []


def scatter(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = torch.zeros_like(x[0])
    parts = list(x.unbind()) if dist.get_rank() == 1 else None
    return dist.scatter(found, parts, 1, group=group, async_op=async_op), [found]


def broadcast(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    return dist.broadcast(x, 1, group=group, async_op=async_op), [x]


def all_to_all(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = [torch.zeros_like(part) for part in x.unbind()]
    return dist.all_to_all(found, list(x.unbind()), group=group, async_op=async_op), found


def all_to_all_single(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = torch.zeros(x.shape, dtype=x.dtype)
    return dist.all_to_all_single(found, x, group=group, async_op=async_op), [found]


def exchange(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    """A ring of messages."""
    rank, found = dist.get_rank(), torch.zeros_like(x)
    to, of = (rank + 1) % RANKS, (rank - 1) % RANKS
    if async_op:
        works = [dist.isend(x, to, group, tag=3), dist.irecv(found, of, group, tag=3)]
        for work in works:
            assert work is not None
            work.wait()
        return None, [found]
    operations = [dist.P2POp(dist.isend, x, to, group), dist.P2POp(dist.irecv, found, of, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return None, [found]


def all_gather_coalesced(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    found = [[torch.zeros_like(x), torch.zeros_like(x[0])] for _ in range(RANKS)]
    if dist.get_backend(group) == "gloo":
        # Not of gloo, but what it would be.
        works = [all_gather(one, group, async_op) for one in (x, x[0].contiguous())]
        for work, _ in works:
            if work is not None:
                work.wait()
        return None, [one for pair in zip(*(parts for _, parts in works), strict=True) for one in pair]
    work = dist.all_gather_coalesced(found, [x, x[0]], group=group, async_op=async_op)
    return work, [one for of_rank in found for one in of_rank]


MOVING: list[Call] = [
    all_gather, all_gather_coalesced, all_gather_into_tensor, gather, scatter, broadcast, all_to_all,
    all_to_all_single, exchange,
]  # fmt: skip


def reducing(op: Any) -> list[Call]:
    def all_reduce(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
        return dist.all_reduce(x, op, group=group, async_op=async_op), [x]

    def reduce(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
        # What other ranks find in their tensor is not defined.
        return dist.reduce(x, 1, op, group=group, async_op=async_op), [x] if dist.get_rank() == 1 else []

    def reduce_scatter(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
        found = torch.zeros_like(x[0])
        return dist.reduce_scatter(found, list(x.unbind()), op, group=group, async_op=async_op), [found]

    def reduce_scatter_tensor(x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
        found = torch.zeros(1, *x.shape[1:], dtype=x.dtype)
        return dist.reduce_scatter_tensor(found, x, op, group=group, async_op=async_op), [found]

    return [all_reduce, reduce, reduce_scatter, reduce_scatter_tensor]


def outcome(call: Call, x: Tensor, group: Any, async_op: bool) -> Any:
    """Tensors that a call leaves, or its error."""
    try:
        work, found = call(x, group, async_op)
        if work is not None:
            work.wait()
    except (InputError, ValueError, RuntimeError, TypeError) as error:
        return error
    return found


def rank_input(dtype: torch.dtype, layout: str, rank: int) -> Tensor:
    flat = torch.arange(12) % 3 + rank + 1
    return LAYOUTS[layout]((flat > 2) if dtype == torch.bool else flat.to(dtype))


def differences(rank: int, reduces: bool) -> tuple[int, list[str]]:
    """Number of cases, and those in which the backend neither does what gloo does nor says what it cannot do."""
    gloo, ours = dist.group.WORLD, dist.new_group(backend="wirewise")
    calls = (
        [(op, call) for op in OPS for call in reducing(op)] if reduces else [(None, one) for one in MOVING]
    )
    wrong, count = [], 0
    for (op, call), dtype, layout in itertools.product(calls, DTYPES, LAYOUTS):
        if reduces and layout == "strided":
            continue  # As transposed; the sums themselves are what is asked here.
        # Alternating: each of them in turn.
        async_op = bool(count % 2)
        count += 1
        # gloo takes the memory of strided tensors as if they were contiguous, without a word.
        expected = outcome(call, rank_input(dtype, layout, rank).contiguous(), gloo, async_op)
        found = outcome(call, rank_input(dtype, layout, rank), ours, async_op)
        if isinstance(found, Exception):
            # What gloo refuses need not run; what it does may be refused by name.
            fine = isinstance(expected, Exception) or (
                isinstance(found, InputError) and "expected" in str(found)
            )
        else:
            fine = isinstance(expected, Exception) or (
                len(found) == len(expected)
                and all(
                    torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True)
                )
            )
        if not fine:
            wrong.append(f"{call.__name__} {op} {dtype} {layout}: {found!r}, gloo {expected!r}")
    return count, wrong


@pytest.mark.parametrize("reduces", [False, True], ids=["moving", "reducing"])
def test_calls_leave_what_gloo_leaves(reduces: bool) -> None:
    for count, wrong in run_ranks_as_processes(RANKS, differences, reduces, timeout_s=240):
        assert count > 300 and not wrong, "\n".join(wrong[:10])


def parameters_after_training(rank: int, kind: str, folder: str) -> list[dict[str, Tensor]]:
    """Parameters after some steps over gloo, and over the backend."""
    found = []
    for backend in ("gloo", "wirewise"):
        dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/{backend}", RANKS)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5))
        found.append(KINDS[kind](net, rank))
    return found


def steps(model: Any, parameters: Any, rank: int) -> None:
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        F.cross_entropy(model(torch.randn(6, 8)), torch.randint(5, (6,))).backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp2(net: nn.Sequential, rank: int) -> dict[str, Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    steps(net, net.parameters(), rank)
    return {name: p.full_tensor().detach() for name, p in net.named_parameters()}  # type: ignore[attr-defined]


def fsdp1(net: nn.Sequential, rank: int) -> dict[str, Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
    steps(model, model.parameters(), rank)
    with FullyShardedDataParallel.summon_full_params(model):
        return {name: p.detach().clone() for name, p in model.named_parameters()}


def tensor_parallel(net: nn.Sequential, rank: int) -> dict[str, Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    net = parallelize_module(net, init_device_mesh("cpu", (RANKS,)), plan)  # type: ignore[assignment]
    # All ranks have the same batches.
    steps(net, net.parameters(), 0)
    return {name: p.full_tensor().detach() for name, p in net.named_parameters()}  # type: ignore[attr-defined]


def pipeline(net: nn.Sequential, rank: int) -> dict[str, Tensor]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    own = net[rank]
    stage = PipelineStage(own, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=3, loss_fn=F.cross_entropy)
    optimizer = torch.optim.Adam(own.parameters(), lr=0.01) if rank != 1 else None
    for step in range(4):
        torch.manual_seed(step)
        x, y = torch.randn(6, 8), torch.randint(5, (6,))
        schedule.step(*[x] * (rank == 0), **{"target": y} if rank == RANKS - 1 else {})
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return {name: p.detach() for name, p in own.named_parameters()}


KINDS = {"fsdp2": fsdp2, "fsdp1": fsdp1, "tensor_parallel": tensor_parallel, "pipeline": pipeline}


@pytest.mark.parametrize("kind", KINDS)
def test_training_leaves_the_parameters_of_gloo(kind: str, tmp_path: Any) -> None:
    for gloo, ours in run_ranks_as_processes(
        RANKS, parameters_after_training, kind, str(tmp_path), timeout_s=120
    ):
        assert gloo.keys() == ours.keys()
        assert all(torch.allclose(gloo[name], ours[name], rtol=1e-5, atol=1e-7) for name in gloo)


_SILENT = re.compile(
    r"^(get_|is_|supports_|init_process_group$|default_pg_timeout$|reduce_op$|group$|record_comm$)"
)
"""Names that communicate nothing, and the start of all."""


def test_the_page_lists_every_call_of_torch() -> None:
    page = (Path(__file__).parents[3] / "docs/howto/torch-distributed.md").read_text()
    listed = set(re.findall(r"`(\w+)`", page))
    calls = {name for name in dist.distributed_c10d.__all__ if name[0].islower() and not _SILENT.match(name)}
    assert len(calls) > 30 and not calls - listed
