"""Plans carried out by ranks as threads: what slicing gives, bit for bit (R2)."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.planners.reshard.helpers import cut, layouts, links_of, tensor
from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import LaidOutTensor, Sharding, parse_sharding
from wirewise.plans.reshard import STRATEGIES
from wirewise.runtime.pipeline.multicast import first_tag
from wirewise.runtime.pipeline.reshard import Resharder


def whole_of(one: LaidOutTensor) -> torch.Tensor:
    kind = getattr(torch, one.dtype)
    numbers = torch.arange(int(np.prod(one.shape))).reshape(one.shape) * 7 % 251
    return numbers.to(kind) if kind is not torch.bool else numbers % 3 == 0


def part_of(whole: torch.Tensor, layout, rank: int) -> torch.Tensor | None:
    """Part of a rank, by the indices that numpy cuts; of partial sums, all but the first are zero."""
    if rank not in layout.ranks:
        return None
    index = cut(
        np.arange(whole.numel()).reshape(whole.shape), msgspec.structs.replace(layout, partial=()), rank
    )
    found = whole.reshape(-1)[torch.from_numpy(index.copy()).reshape(-1)].reshape(index.shape)
    place = np.unravel_index(layout.ranks.index(rank), layout.mesh)
    return found if all(place[axis] == 0 for axis in layout.partial) else torch.zeros_like(found)


def same(got: torch.Tensor, expected: torch.Tensor | None) -> bool:
    if expected is None:
        return got.numel() == 0
    return got.shape == expected.shape and bytes(
        got.contiguous().reshape(-1).view(torch.uint8).tolist()
    ) == bytes(expected.contiguous().reshape(-1).view(torch.uint8).tolist())


def moved(plans, world: int, **options) -> None:
    """Carry plans out one after the other on the same ranks, and compare with slices."""

    def rank(number, group, store):
        for plan in plans:
            wholes = [whole_of(one) for one in plan.tensors]
            given = [part_of(w, t.source, number) for w, t in zip(wholes, plan.tensors, strict=True)]
            before = [None if one is None else one.clone() for one in given]
            with_options = Resharder(plan, group, timeout_s=20.0, **options)
            for got, whole, one in zip(with_options(given), wholes, plan.tensors, strict=True):
                assert same(got, part_of(whole, one.target, number)), (number, one)
            assert all(a is None or same(a, b) for a, b in zip(given, before, strict=True))

    run_ranks_as_threads(world, rank)


def plan_of(source: str, target: str, shape, *, dtype="float32", per_host=2, first=None, **knobs):
    before = parse_sharding(source)
    after = parse_sharding(target, first_rank=len(before.ranks) if first is None else first)
    world = max(*before.ranks, *after.ranks) + 1
    return cross_mesh(tensor(before, after, shape, dtype), links_of(world, per_host), **knobs)


@pytest.mark.slow
def test_all_pairs_of_layouts_on_disjoint_meshes():
    pairs = itertools.product(layouts((2, 2), 2), layouts((2, 2), 2, 4))
    plans = [cross_mesh(tensor(a, b, (7, 10), "float32"), links_of(8), chunk_bytes=16) for a, b in pairs]
    assert len(plans) == 81
    moved(plans, 8)


@pytest.mark.parametrize("meshes", [((4, 2), (2, 4)), ((4, 2), (8, 1)), ((2, 4), (4, 2))], ids=str)
@pytest.mark.slow
def test_all_pairs_of_layouts_on_overlapping_meshes(meshes):
    pairs = itertools.product(layouts(meshes[0], 2), layouts(meshes[1], 2))
    moved([cross_mesh(tensor(a, b, (9, 10), "int16"), links_of(8), chunk_bytes=16) for a, b in pairs], 8)


@pytest.mark.sweep
@pytest.mark.parametrize("in_steps", [False, True], ids=["threads", "steps"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(strategy, in_steps):
    words = [
        ("2x1:S0,R", "3x2:R,R"),
        ("2x1:R,S0", "3x2:S0,R"),
        ("2x1:R,R,P0", "3x2:R,S0"),
        ("2:S0,R", "2x2:S10,R"),
    ]
    plans = [plan_of(a, b, (12, 10), strategy=strategy, chunk_bytes=48) for a, b in words]
    moved([p for p in plans if p.world_size == 8], 8, in_steps=in_steps)
    moved([p for p in plans if p.world_size == 6], 6, in_steps=in_steps)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float64", "int64", "bool", "uint8", "float8_e4m3fn", "complex64"]
)
def test_every_type(dtype):
    plans = [
        plan_of(a, b, (6, 10), dtype=dtype, chunk_bytes=32)
        for a, b in [("2:R,S0", "2:S0,R"), ("2:S0,R", "2:R,R")]
    ]
    moved(plans, 4)


def test_equal_placements_on_another_mesh_move():
    """DTensor.redistribute returns the tensor where it was."""
    moved([plan_of("2:S0", "2:S0", (8,))], 4)


def test_scalars_empty_parts_and_nothing():
    moved([plan_of("2:", "2:", ()), plan_of("2:S0", "2:R", (1,)), plan_of("2:S0", "2:R", (0,))], 4)


def test_several_tensors_of_several_types():
    before, after = parse_sharding("4:S0,R"), parse_sharding("2x2:R,S1")
    tensors = [
        LaidOutTensor(name=f"w{n}", shape=(5, 3 + n), dtype=dtype, source=before, target=after, bucket=n // 3)
        for n, dtype in enumerate(["float32", "int8", "float64", "bfloat16", "bool"])
    ]
    plan = cross_mesh(tensors, links_of(4), chunk_bytes=16)
    moved([plan], 4)

    def rank(number, group, store):
        wholes = [whole_of(one) for one in tensors]
        given = [part_of(w, t.source, number) for w, t in zip(wholes, tensors, strict=True)]
        found = {}
        for bucket, parts in enumerate(Resharder(plan, group).consume(given)):
            assert [one is None for one in given] == [n // 3 <= bucket for n in range(5)]
            found |= parts
        assert all(
            same(found[n], part_of(w, t.target, number))
            for n, (w, t) in enumerate(zip(wholes, tensors, strict=True))
        )

    run_ranks_as_threads(4, rank)


def test_rows_of_a_partitioned_graph():
    parts = (((5, 9), (0, 2)), ((2, 5),), ((9, 12),))
    halo = (((0, 4),), ((9, 12), (3, 6)), ((0, 1), (2, 3), (4, 12)))
    before = Sharding(mesh=(3,), ranks=(0, 1, 2), dims=((), ()), rows=parts)
    after = Sharding(mesh=(3,), ranks=(2, 1, 0), dims=((), ()), rows=halo)
    columns = Sharding(mesh=(3,), ranks=(0, 1, 2), dims=((), (0,)))
    pairs = [(before, after), (before, columns), (columns, before)]
    moved([cross_mesh(tensor(a, b, (12, 5), "float32"), links_of(3, 1), chunk_bytes=16) for a, b in pairs], 3)


def test_moves_that_go_on_beside_each_other():
    plans = [plan_of("2x2:S0,R", "2x2:R,R", (16, 8 + n), chunk_bytes=64) for n in range(4)]

    def rank(number, group, store):
        movers = [Resharder(plan, group) for plan in plans]
        wholes = [whole_of(plan.tensors[0]) for plan in plans]
        under_way = [
            mover.start([part_of(whole, mover.plan.tensors[0].source, number)])
            for mover, whole in zip(movers, wholes, strict=True)
        ]
        for move, mover, whole in reversed(list(zip(under_way, movers, wholes, strict=True))):
            assert same(move.wait()[0], part_of(whole, mover.plan.tensors[0].target, number))

    run_ranks_as_threads(8, rank)


def test_gradients_take_the_reverse_way():
    """The gradient of the moved tensor comes back to its layout; that of a sum to each partial sum."""
    plans = [
        plan_of("2x1:S0,R", "1x2:R,S1", (4, 6), dtype="float64"),
        plan_of("2:R,R,P0", "2:S0,R", (4, 6), dtype="float64"),
    ]

    def rank(number, group, store):
        for plan in plans:
            (one,) = plan.tensors
            whole = whole_of(one)
            part = part_of(whole, one.source, number)
            part = None if part is None else part.requires_grad_()
            (got,) = Resharder(plan, group)([part], differentiable=True)
            weight = part_of(whole.cos(), one.target, number)
            got.backward(torch.zeros_like(got) if weight is None else weight)
            expected = part_of(whole.cos(), one.source.summed, number)
            assert (part is None) == (expected is None)
            assert part is None or torch.equal(part.grad, expected)

    run_ranks_as_threads(4, rank)


def test_what_does_not_fit_is_refused_on_every_rank():
    plan = plan_of("2:S0", "2:S0", (8,))

    def other_size(rank, group, store):
        with pytest.raises(PlanError, match="made for world size 4, the group has 3 ranks"):
            Resharder(plan, group)

    def other_plans(rank, group, store):
        own = plan if rank != 2 else plan_of("2:S0", "2:S0", (8,), chunk_bytes=4096)
        with pytest.raises(
            PlanError, match=r"the reshard plan of rank \d is not that of rank [02]; give all ranks the same"
        ):
            Resharder(own, group)

    def broken(rank, group, store):
        wrong = msgspec.structs.replace(plan, chunk_bytes=0) if rank == 1 else plan
        said = r"at `\$\.chunk_bytes`" if rank == 1 else "rank 1 refuses its reshard plan"
        with pytest.raises(PlanError, match=said):
            Resharder(wrong, group)

    def wrong_parts(rank, group, store):
        mover = Resharder(plan, group)
        for given, said in [
            ([], "got 0 tensors; expected 1"),
            ([None], r"rank \d gives nothing of tensor 'x'; expected its part \[4\]"),
            ([torch.zeros(5)], r"gives float32 \[5\] of tensor 'x'; expected its part float32 \[4\]"),
            ([torch.zeros(4, dtype=torch.int32)], r"gives int32 \[4\]"),
        ]:
            if rank < 2 or not given:
                with pytest.raises(InputError, match=said):
                    mover(given)

    def sums(rank, group, store):
        with pytest.raises(PlanError, match="tensor 'x' is a sum of bool partial sums, which are not summed"):
            Resharder(plan_of("2:R,P0", "2:S0", (8,), dtype="bool"), group)

    run_ranks_as_threads(3, other_size)
    for one in (other_plans, broken, wrong_parts, sums):
        run_ranks_as_threads(4, one)


def test_calls_have_tags_of_their_own():
    class Group:
        pass

    one, other = Group(), Group()
    found = [first_tag(one, 5), first_tag(one, 7), first_tag(other, 3), first_tag(one, 1)]
    assert [tag - found[0] for tag in found] == [0, 5, 0, 12]
    assert first_tag(one, 2**30 - 5) == found[0]
    assert first_tag(one, 10) == found[0]
