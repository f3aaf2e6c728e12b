"""Layouts in numbers, and a plan carried out on arrays: what runtimes are held against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from wirewise.cost import Links
from wirewise.plans import LaidOutTensor, ReshardPlan, Sharding

MESHES = tuple(itertools.product((1, 2, 3, 4), (1, 2)))


def layouts(mesh: Sequence[int], dims: int, first_rank: int = 0) -> Iterator[Sharding]:
    """Every choice of a dimension or of none for each axis; two axes on one dimension in their order."""
    ranks = tuple(range(first_rank, first_rank + int(np.prod(mesh))))
    for places in itertools.product(range(dims + 1), repeat=len(mesh)):
        split = tuple(tuple(a for a, place in enumerate(places) if place == d) for d in range(dims))
        yield Sharding(mesh=tuple(mesh), ranks=ranks, dims=split)


def links_of(world: int, per_host: int = 2, rate: float = 1e6) -> Links:
    """Hosts with so many ranks each."""
    return Links.uniform(-(-world // per_host), rate, 1e-5, ranks_per_host=per_host, intra_bytes_per_s=1e9)


def tensor(source: Sharding, target: Sharding, shape: Sequence[int], dtype: str = "int32", **more):
    return LaidOutTensor(name="x", shape=tuple(shape), dtype=dtype, source=source, target=target, **more)


def cut(whole: np.ndarray, layout: Sharding, rank: int) -> np.ndarray:
    """What a rank holds of an array, by indices alone; of partial sums, all but the first are zero."""
    position = layout.ranks.index(rank)
    place = np.unravel_index(position, layout.mesh)
    indices = []
    for dim, axes in enumerate(layout.dims):
        own = np.arange(whole.shape[dim])
        if dim == 0 and layout.rows:
            own = np.concatenate([np.arange(*interval) for interval in layout.rows[position]] or [own[:0]])
        for axis in axes:
            size = -(-len(own) // layout.mesh[axis])
            own = own[place[axis] * size : (place[axis] + 1) * size]
        indices.append(own)
    found = whole[np.ix_(*indices)] if indices else whole.copy()
    return found if all(place[axis] == 0 for axis in layout.partial) else np.zeros_like(found)


def carried_out(plan: ReshardPlan, wholes: Sequence[np.ndarray]) -> list[dict[int, np.ndarray]]:
    """What each rank has of each tensor after the plan; every byte is written once or the plan is wrong."""
    held = [
        {r: cut(w, t.source, r) for r in t.source.ranks} for t, w in zip(plan.tensors, wholes, strict=True)
    ]
    after, written = [], []
    for one, whole in zip(plan.tensors, wholes, strict=True):
        shapes = {rank: one.target.local_shape(one.shape, rank) for rank in one.target.ranks}
        after.append({rank: np.zeros(shape, whole.dtype) for rank, shape in shapes.items()})
        written.append({rank: np.zeros(shape, int) for rank, shape in shapes.items()})
    for task in plan.tasks:

        def packed(rank: int, task=task) -> bytes:
            return b"".join(
                held[s.tensor][rank][_inside(plan.tensors[s.tensor], "source", rank, s.box)].tobytes()
                for s in task.slices
            )

        own = {rank: packed(rank) for own in task.holders for rank in own}
        if task.adders:
            kind = wholes[task.slices[0].tensor].dtype
            total = sum(np.frombuffer(own[rank], kind) for rank in task.adders)
            own = {task.adders[0]: total.astype(kind).tobytes()}
        got = {rank: own[rank] for rank in task.kept}
        parts: dict[int, dict[tuple[int, int], bytes]] = {}
        for tree in task.trees:
            have = {tree.sender}
            for here, there in tree.edges:
                assert here in have, "a rank passes on what it has not got"
                have.add(there)
                parts.setdefault(there, {})[tree.start, tree.stop] = own[tree.sender][tree.start : tree.stop]
        got |= {rank: b"".join(part for _, part in sorted(own.items())) for rank, own in parts.items()}
        assert set(got) == set(task.receivers)
        for rank, data in got.items():
            begin = 0
            for s in task.slices:
                place = _inside(plan.tensors[s.tensor], "target", rank, s.box)
                view = after[s.tensor][rank][place]
                end = begin + view.nbytes
                after[s.tensor][rank][place] = np.frombuffer(data[begin:end], view.dtype).reshape(view.shape)
                written[s.tensor][rank][place] += 1
                begin = end
            assert begin == len(data)
    for own in written:
        for rank, count in own.items():
            assert (count == 1).all(), f"rank {rank} gets something twice or never"
    return after


def _inside(one: LaidOutTensor, side: str, rank: int, box) -> tuple:
    """Index of a box in what a rank holds."""
    layout = getattr(one, side)
    grids = []
    for dim, (start, stop) in enumerate(box):
        own = cut(np.arange(one.shape[dim]), _line(layout, dim), rank)
        grids.append(np.flatnonzero((own >= start) & (own < stop)))
        assert len(grids[-1]) == stop - start, f"rank {rank} does not hold all of {box}"
    return np.ix_(*grids) if grids else ()


def _line(layout: Sharding, dim: int) -> Sharding:
    """The layout of one dimension."""
    return Sharding(
        mesh=layout.mesh,
        ranks=layout.ranks,
        dims=(layout.dims[dim],),
        rows=layout.rows if dim == 0 else (),
    )


def check(plan: ReshardPlan, wholes: Sequence[np.ndarray] | None = None) -> None:
    """The plan is consistent, and every rank ends up with what slicing gives."""
    plan.check_itself()
    if wholes is None:
        wholes = [
            np.arange(1, int(np.prod(t.shape)) + 1, dtype=np.int32).reshape(t.shape) for t in plan.tensors
        ]
    for one, whole, after in zip(plan.tensors, wholes, carried_out(plan, wholes), strict=True):
        for rank, got in after.items():
            np.testing.assert_array_equal(got, cut(whole, one.target, rank))
