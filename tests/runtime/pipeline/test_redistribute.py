"""DTensors between meshes, and whole models, on real ranks (R2, R8)."""

from __future__ import annotations

import gc
import os
import time
import weakref

import pytest
import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from tests.harness.processes import run_ranks_as_processes
from wirewise.errors import InputError, PeerError
from wirewise.plans import parse_sharding
from wirewise.runtime.pipeline.redistribute import convert_state_dict, layout_of, redistribute_across
from wirewise.runtime.pipeline.shards import part_of

pytestmark = pytest.mark.dist


def mesh(*shape: int, first: int = 0) -> DeviceMesh:
    count = torch.Size(shape).numel()
    return DeviceMesh("cpu", torch.arange(first, first + count).reshape(shape))


def same_as_distributed(got: DTensor, whole: torch.Tensor, on: DeviceMesh, placements) -> None:
    expected = distribute_tensor(whole, on, placements, src_data_rank=None)
    assert got.device_mesh == on and tuple(got.placements) == tuple(placements)
    assert got.shape == whole.shape and got.stride() == whole.stride()
    if on.get_coordinate() is not None:
        assert torch.equal(got.to_local(), expected.to_local())
    else:
        assert got.to_local().numel() == 0


def placements_move(rank: int) -> None:
    whole = torch.arange(70.0).reshape(7, 10)
    first, last, square, line = mesh(2), mesh(2, first=2), mesh(2, 2), mesh(4)
    pairs = [
        (first, [Shard(0)], last, [Shard(0)]),
        (first, [Shard(0)], last, [Replicate()]),
        (first, [Replicate()], square, [Shard(1), Shard(0)]),
        (square, [Shard(0), Shard(0)], line, [Shard(0)]),
        (square, [Shard(1), Replicate()], line, [Shard(-2)]),
        (line, [Shard(1)], square, [Replicate(), Shard(1)]),
    ]
    for source, before, target, after in pairs:
        given = distribute_tensor(whole, source, before, src_data_rank=None)
        for _ in range(2):
            got = redistribute_across(given, target, after)
            same_as_distributed(
                got, whole, target, [Shard(p.dim % 2) if isinstance(p, Shard) else p for p in after]
            )
    even = torch.arange(64.0).reshape(16, 4)
    given = distribute_tensor(even, square, [_StridedShard(0, split_factor=2), Shard(0)], src_data_rank=None)
    got = redistribute_across(given, line, [Shard(0)])
    assert torch.equal(got.to_local(), even.chunk(4)[rank])
    own = torch.full((4, 4), float(rank + 1))
    addends = DTensor.from_local(own, square, [Partial(), Shard(0)], run_check=False)
    got = redistribute_across(addends, line, [Shard(0)])
    total = torch.cat([torch.full((4, 4), 4.0), torch.full((4, 4), 6.0)])
    assert torch.equal(got.to_local(), total.chunk(4)[rank])


@pytest.mark.slow
def test_placements_move_between_meshes():
    run_ranks_as_processes(4, placements_move)


def gradients_come_back(rank: int) -> None:
    first, last = mesh(2), mesh(2, first=2)
    whole = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    given = distribute_tensor(whole, first, [Shard(0)], src_data_rank=None).requires_grad_()
    got = redistribute_across(given, last, [Shard(1)])
    (got * got).sum().backward()
    if rank < 2:
        assert torch.equal(given.grad.to_local(), 2 * whole.chunk(2)[rank])
        assert tuple(given.grad.placements) == (Shard(0),)


@pytest.mark.slow
def test_gradients_come_back_to_the_mesh_that_they_left():
    run_ranks_as_processes(4, gradients_come_back)


def layouts(rank: int) -> None:
    square = mesh(2, 2)
    assert layout_of(square, [Shard(0), Shard(0)], (8,)) == parse_sharding("2x2:S01")
    assert layout_of(square, [_StridedShard(0, split_factor=2), Shard(0)], (8,)) == parse_sharding("2x2:S10")
    assert layout_of(square, [Partial(), Replicate()], (8, 2)) == parse_sharding("2x2:R,R,P0")
    for placements, shape, said in [
        ([Partial("avg"), Replicate()], (8,), r"got the placement Partial\(avg\)|got the placement P\(avg\)"),
        ([_StridedShard(0, split_factor=2), Shard(0)], (7,), "dimension 0 of size 7 is split by axes"),
        ([_StridedShard(0, split_factor=3), Shard(0)], (12,), "split_factor 3"),
        ([Shard(0)], (8,), "got 1 placements; expected one for each of 2 axes"),
        ([Shard(2), Replicate()], (8, 2), "of 2 dimensions; expected one of these"),
    ]:
        with pytest.raises(InputError, match=said):
            layout_of(square, placements, shape)
    with pytest.raises(InputError, match="got a Tensor; expected a DTensor"):
        redistribute_across(torch.zeros(2), square, [Replicate(), Replicate()])
    one = distribute_tensor(torch.ones(4), square, [Replicate()] * 2, src_data_rank=None)
    for state, given, more, said in [
        ({"w": one}, {}, {}, "no placements are given for 'w'"),
        ({"w": one}, {"w": [Shard(0)] * 2, "v": []}, {}, "placements are given for 'v'"),
        ({"w": one}, {"w": [Shard(0)] * 2}, {"bucket_bytes": 0}, "bucket_bytes is 0"),
    ]:
        with pytest.raises(InputError, match=said):
            convert_state_dict(state, square, given, **more)
        assert list(state) == ["w"]
    assert convert_state_dict({"step": 3}, square, {}) == {"step": 3}


@pytest.mark.slow
def test_layouts_of_placements():
    run_ranks_as_processes(4, layouts)


SIZES = [(64, 32), (32,), (32, 48), (48,), (7, 13), (5,), (1, 9), (40, 30), (30,), (16, 16)]


def model_goes_there_and_back(rank: int) -> None:
    line, square = mesh(4), mesh(2, 2)
    random = torch.Generator().manual_seed(0)
    wholes = {f"layer{n}.w": torch.randn(SIZES[n % len(SIZES)], generator=random) for n in range(100)}
    wholes["layer3.w"] = wholes["layer3.w"].bfloat16()

    def fsdp(name, tensor):
        return [Shard(0)]

    def tensor_parallel(name, tensor):
        return [Replicate(), Shard(tensor.dim() - 1)]

    state = {name: distribute_tensor(w, line, [Shard(0)], src_data_rank=None) for name, w in wholes.items()}
    state["step"] = 3
    there = convert_state_dict(state, square, tensor_parallel, bucket_bytes=8192)
    assert state == {} and list(there) == [*wholes, "step"] and there["step"] == 3
    for name, whole in wholes.items():
        same_as_distributed(there[name], whole, square, tensor_parallel(name, whole))
    back = convert_state_dict(there, line, fsdp, bucket_bytes=8192)
    for name, whole in wholes.items():
        same_as_distributed(back[name], whole, line, [Shard(0)])
    smaller = convert_state_dict(back, mesh(3), lambda name, tensor: [Shard(0)])
    for name, whole in wholes.items():
        same_as_distributed(smaller[name], whole, mesh(3), [Shard(0)])


@pytest.mark.slow
def test_a_model_goes_from_fsdp_to_tensor_parallel_and_back():
    run_ranks_as_processes(4, model_goes_there_and_back)


def parts_are_freed(rank: int) -> None:
    line, square = mesh(4), mesh(2, 2)
    state = {
        f"w{n}": distribute_tensor(torch.ones(64, 64), line, [Shard(0)], src_data_rank=None) for n in range(8)
    }
    given = [weakref.ref(one._local_tensor.untyped_storage()) for one in state.values()]
    alive: list[int] = []
    from wirewise.runtime.pipeline import reshard

    plain = reshard.Resharder._carry

    def counting(self, *words):
        gc.collect()
        alive.append(sum(one() is not None for one in given))
        plain(self, *words)

    reshard.Resharder._carry = counting
    try:
        convert_state_dict(
            state, square, lambda name, tensor: [Replicate(), Shard(1)], bucket_bytes=2 * 64 * 64 * 4
        )
    finally:
        reshard.Resharder._carry = plain
    assert alive == [8, 6, 4, 2]


@pytest.mark.slow
def test_parts_that_have_moved_are_freed_bucket_by_bucket():
    run_ranks_as_processes(4, parts_are_freed)


def one_is_silent(rank: int) -> str:
    whole = torch.ones(1 << 20)
    given = distribute_tensor(whole, mesh(2), [Shard(0)], src_data_rank=None)
    redistribute_across(given, mesh(2, first=2), [Replicate()], timeout_s=5.0)
    if rank == 1:
        # It stays silent, as one whose network is gone.
        time.sleep(15.0)
        return ""
    if rank == 0:
        # It has sent its part when the others wait in vain.
        redistribute_across(given, mesh(2, first=2), [Replicate()], timeout_s=5.0)
        time.sleep(15.0)
        return ""
    with pytest.raises(PeerError) as caught:
        redistribute_across(given, mesh(2, first=2), [Replicate()], timeout_s=5.0)
    return str(caught.value)


@pytest.mark.slow
def test_a_silent_rank_is_named():
    found = run_ranks_as_processes(4, one_is_silent)
    assert all("rank 1" in said for said in found[2:])


def killed(rank: int) -> None:
    given = distribute_tensor(torch.ones(1 << 20), mesh(2), [Shard(0)], src_data_rank=None)
    redistribute_across(given, mesh(2, first=2), [Replicate()], timeout_s=20.0)
    if rank == 1:
        os._exit(9)
    if rank < 2:
        time.sleep(30.0)
    with pytest.raises(PeerError, match="rank 1"):
        redistribute_across(given, mesh(2, first=2), [Replicate()], timeout_s=20.0)


@pytest.mark.slow
def test_a_killed_rank_ends_the_move():
    with pytest.raises(ChildProcessError, match="rank 1"):
        run_ranks_as_processes(4, killed)


class _Part(torch.autograd.Function):
    """A rank's part of values that all ranks have; gradients of equal parts count once together."""

    @staticmethod
    def forward(ctx, whole, places, copies):
        ctx.places, ctx.copies, ctx.shape = places, copies, whole.shape
        return whole.reshape(-1)[places]

    @staticmethod
    def backward(ctx, gradient):
        found = torch.zeros(ctx.shape, dtype=gradient.dtype)
        found.view(-1)[ctx.places] = gradient / ctx.copies
        torch.distributed.all_reduce(found)
        return found, None, None


class _Whole(torch.autograd.Function):
    """The whole tensor from the parts of all ranks, of which several may be equal."""

    @staticmethod
    def forward(ctx, part, shape, places, copies):
        ctx.places = places
        found = torch.zeros(shape, dtype=part.dtype)
        found.view(-1)[places] = part / copies
        torch.distributed.all_reduce(found)
        return found

    @staticmethod
    def backward(ctx, gradient):
        return gradient.reshape(-1)[ctx.places], None, None, None


def places_of(layout, shape, rank):
    """Places of a rank's part in the whole tensor, and how many ranks have an equal part."""
    split = {axis for axes in layout.dims for axis in axes} | set(layout.partial)
    copies = torch.Size([size for axis, size in enumerate(layout.mesh) if axis not in split]).numel()
    own = part_of(torch.arange(torch.Size(shape).numel()).reshape(shape), layout.summed, rank)
    return torch.empty((0,) * len(shape), dtype=torch.int64) if own is None else own, copies


def checked_by_differences(rank: int) -> None:
    first, last, square, line = mesh(2), mesh(2, first=2), mesh(2, 2), mesh(4)
    shape = (3, 2)
    for source, before, target, after in [
        (first, [Shard(0)], last, [Shard(1)]),
        (line, [Shard(1)], square, [Replicate(), Shard(0)]),
        (square, [Replicate(), Shard(0)], first, [Replicate()]),
        (square, [Partial(), Shard(0)], line, [Shard(0)]),
        (first, [Partial()], last, [Replicate()]),
    ]:
        layout, wanted = layout_of(source, before, shape), layout_of(target, after, shape)
        places, copies = places_of(layout, shape, rank)
        ends, same = places_of(wanted, shape, rank)
        addends = torch.Size([layout.mesh[axis] for axis in layout.partial]).numel()
        if rank in layout.ranks and layout.partial:
            number = layout.coordinates(layout.ranks.index(rank))[layout.partial[0]]
            places = places + number * torch.Size(shape).numel()

        def moved(whole, way=(source, before, target, after), own=(places, copies), got=(ends, same)):
            source, before, target, after = way
            given = DTensor.from_local(
                _Part.apply(whole, *own),
                source,
                before,
                run_check=False,
                shape=shape,
                stride=(2, 1),
            )
            found = redistribute_across(given, target, after)
            return _Whole.apply(found.to_local().reshape(got[0].shape), shape, *got)

        random = torch.Generator().manual_seed(1)
        whole = torch.randn((addends, *shape), generator=random, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(moved(whole), whole.sum(0), rtol=0, atol=1e-15)
        assert torch.autograd.gradcheck(moved, (whole,))


@pytest.mark.slow
def test_gradients_are_those_of_differences_addends_included():
    run_ranks_as_processes(4, checked_by_differences)
