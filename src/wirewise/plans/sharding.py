"""Layouts of tensors on meshes of ranks, and the slices that move between two layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import msgspec

from wirewise.errors import InputError
from wirewise.units import ITEM_BYTES

__all__ = [
    "ITEM_BYTES",
    "Intervals",
    "LaidOutTensor",
    "Movement",
    "Sharding",
    "TensorSlice",
    "chunked",
    "movements",
    "parse_sharding",
]

Interval = tuple[int, int]
"""First index and the one after the last."""

Intervals = tuple[Interval, ...]

_AXES = 10
"""Axes of a mesh at most: a placement names each by one digit."""


class Sharding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Layout of a tensor on a mesh of ranks.

    A dimension sharded over several axes is split by the first axis, then each shard by the next (`S01` and `S10`
    differ). Shards have the sizes of `torch.chunk`, so the last ones may be smaller or empty. Ranks that differ only
    along unused axes hold replicas.
    """

    mesh: tuple[int, ...]
    """Ranks along each axis."""
    ranks: tuple[int, ...]
    """Ranks of the mesh in row-major order, [product of `mesh`]."""
    dims: tuple[tuple[int, ...], ...]
    """Mesh axes that split each dimension of the tensor, outermost first; empty if the dimension is not split."""
    partial: tuple[int, ...] = ()
    """Mesh axes along which ranks hold partial sums of the tensor."""
    rows: tuple[Intervals, ...] = ()
    """Intervals of dimension 0 that each rank of the mesh holds, in their order in memory, where they are irregular, as
    parts of a graph are; `dims[0]` is empty then."""

    @property
    def text(self) -> str:
        """Layout in the format of `parse_sharding`, without ranks; irregular rows are shown as `rows`."""
        placed = ["S" + "".join(map(str, axes)) if axes else "R" for axes in self.dims]
        if self.rows:
            placed[0] = "rows"
        if self.partial:
            placed.append("P" + "".join(map(str, self.partial)))
        return "x".join(map(str, self.mesh)) + ":" + ",".join(placed)

    def faults(self, shape: Sequence[int]) -> Iterator[str]:
        """Faults of the layout for a tensor of this shape; each starts with the name of a field."""
        if not self.mesh or any(size < 1 for size in self.mesh) or len(self.mesh) > _AXES:
            yield f"mesh: got {list(self.mesh)}; expected 1 to {_AXES} axes of at least one rank"
        elif len(self.ranks) != prod(self.mesh) or len(set(self.ranks)) != len(self.ranks):
            yield (
                f"ranks: got {list(self.ranks)}; expected {prod(self.mesh)} different ranks, as the mesh "
                f"{'x'.join(map(str, self.mesh))} has"
            )
        if len(self.dims) != len(shape):
            yield f"dims: got {len(self.dims)} placements; expected one for each of {len(shape)} dimensions"
        used = [axis for axes in (*self.dims, self.partial) for axis in axes]
        if beyond := [axis for axis in used if not 0 <= axis < len(self.mesh)]:
            yield f"dims: there is no axis {beyond[0]}; expected axes 0 to {len(self.mesh) - 1}"
        if len(set(used)) != len(used):
            twice = next(axis for axis in used if used.count(axis) > 1)
            yield f"dims: axis {twice} splits or sums twice; an axis does one thing"
        if self.rows:
            yield from self._row_faults(shape)

    def _row_faults(self, shape: Sequence[int]) -> Iterator[str]:
        if not self.dims or self.dims[0]:
            yield "rows: dimension 0 is split by axes and by rows; expected one of both"
        elif len(self.rows) != len(self.ranks):
            yield f"rows: got intervals of {len(self.rows)} ranks; expected {len(self.ranks)}, one for each"
        else:
            for number, own in enumerate(self.rows):
                ends = [0, *(end for interval in sorted(own) for end in interval)]
                if ends != sorted(ends) or ends[-1] > shape[0] or any(start >= stop for start, stop in own):
                    yield (
                        f"rows[{number}]: got {list(own)[:4]}; expected intervals that do not overlap, inside 0 to "
                        f"{shape[0]}"
                    )
                    return

    def coordinates(self, position: int) -> tuple[int, ...]:
        """Mesh coordinates of a rank, by its position in `ranks`."""
        found = []
        for size in reversed(self.mesh):
            position, place = divmod(position, size)
            found.append(place)
        return tuple(reversed(found))

    def extents(self, shape: Sequence[int]) -> list[tuple[Intervals, ...]]:
        """Extents of each rank of `ranks`: intervals of each dimension, in their order in memory."""
        found = []
        for position in range(len(self.ranks)):
            place = self.coordinates(position)
            held: list[Intervals] = []
            for number, (size, axes) in enumerate(zip(shape, self.dims, strict=True)):
                if number == 0 and self.rows:
                    held.append(self.rows[position])
                    continue
                start, stop = 0, size
                for axis in axes:
                    first, last = chunked(stop - start, self.mesh[axis], place[axis])
                    start, stop = start + first, start + last
                held.append(((start, stop),) if stop > start else ())
            found.append(tuple(held))
        return found

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Shape of a rank's shard."""
        own = self.extents(shape)[self.ranks.index(rank)]
        return tuple(sum(stop - start for start, stop in intervals) for intervals in own)

    @property
    def summed(self) -> Sharding:
        """Layout with the same shards after reducing partial sums."""
        return msgspec.structs.replace(self, partial=())


def chunked(size: int, parts: int, number: int) -> Interval:
    """First index and end of a shard, split as by `torch.chunk`; missing shards are empty."""
    length = -(-size // parts)
    return min(number * length, size), min((number + 1) * length, size)


def parse_sharding(text: str, *, first_rank: int = 0) -> Sharding:
    """Parse a layout such as `2x4:S0,R,R`: the mesh, then one placement for each tensor dimension.

    Args:
        text: MESH[@RANKS]:PLACEMENTS. Placements are `R`, or `S` and the axes that shard the dimension, the outer one
            first (`S0`, `S01`, `S10`); a final `P` with axes means that ranks along them hold partial sums. Ranks
            have the form `0-7` or `0,2,4-5`; without them the mesh has consecutive ranks.
        first_rank: First rank of a mesh without ranks.

    Raises:
        InputError: The text is malformed; the message names the faulty part.
    """
    head, colon, tail = text.partition(":")
    axes, at, named = head.partition("@")
    sizes = axes.split("x")
    if not colon or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise InputError(f"got the layout {text!r}; expected MESH:PLACEMENTS such as 2x4:S0,R,R")
    mesh = tuple(map(int, sizes))
    words = [word for word in tail.split(",") if word]
    partial: tuple[int, ...] = ()
    if words and words[-1].startswith("P"):
        partial = _axes(words.pop()[1:], text)
    dims = tuple(() if word == "R" else _axes(word[1:] if word[0] == "S" else "", text) for word in words)
    count = prod(mesh)
    ranks = tuple(_ranks(named, text)) if at else tuple(range(first_rank, first_rank + count))
    found = Sharding(mesh=mesh, ranks=ranks, dims=dims, partial=partial)
    for fault in found.faults((1,) * len(dims)):
        raise InputError(f"layout {text!r}: {fault}")
    return found


def _axes(digits: str, text: str) -> tuple[int, ...]:
    if not (digits.isascii() and digits.isdecimal()):
        raise InputError(
            f"got a placement in {text!r} that is none; expected R, S with axes such as S0, S01 or S10, and at the end "
            "P with axes where ranks hold partial sums"
        )
    return tuple(map(int, digits))


def _ranks(named: str, text: str) -> Iterator[int]:
    for word in named.split(","):
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"got the ranks {named!r} in {text!r}; expected such as 0-7 or 0,2,4-5")
        yield from range(int(first), int(last if dash else first) + 1)


class LaidOutTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensor with its layouts before and after."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Type of its elements by torch's name, a key of `ITEM_BYTES`."""
    source: Sharding
    target: Sharding
    bucket: int = 0
    """Tensors of one bucket move together, one bucket after the other."""

    def faults(self) -> Iterator[str]:
        """Faults; each starts with the path of a field."""
        if self.dtype not in ITEM_BYTES:
            yield f"dtype: got {self.dtype!r}; expected one of: {', '.join(ITEM_BYTES)}"
        if any(size < 0 for size in self.shape):
            yield f"shape: got {list(self.shape)}; expected sizes of at least 0"
        for side in ("source", "target"):
            yield from (f"{side}.{fault}" for fault in getattr(self, side).faults(self.shape))
        if self.target.partial:
            yield "target.partial: ranks cannot end up with partial sums; expected none"

    @property
    def item_bytes(self) -> int:
        """Size of an element, in bytes."""
        return ITEM_BYTES[self.dtype]

    @property
    def reverse(self) -> LaidOutTensor:
        """Reverse movement, for gradients: a sum is returned whole to all of its partial sums."""
        return msgspec.structs.replace(self, source=self.target, target=self.source.summed)


class TensorSlice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Box of a tensor."""

    tensor: int
    """Index of the tensor."""
    box: tuple[Interval, ...]
    """Interval of each dimension."""

    @property
    def elements(self) -> int:
        """Number of elements in the box."""
        return prod(stop - start for start, stop in self.box)


class Movement(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of a bucket with the same holders and receivers."""

    bucket: int
    holders: tuple[tuple[int, ...], ...]
    """Ranks that hold each partial sum; one entry where nothing has to be summed."""
    receivers: tuple[int, ...]
    """Ranks that need it."""
    slices: tuple[TensorSlice, ...]


def movements(tensors: Sequence[LaidOutTensor]) -> list[Movement]:
    """Slice the tensors at all shard boundaries, grouped by bucket, holders and receivers.

    Raises:
        InputError: An element needed by a rank is held by none.
    """
    found: dict[tuple[int, tuple[tuple[int, ...], ...], tuple[int, ...]], list[TensorSlice]] = {}
    for number, tensor in enumerate(tensors):
        for box, holders, receivers in _boxes(tensor):
            found.setdefault((tensor.bucket, holders, receivers), []).append(
                TensorSlice(tensor=number, box=box)
            )
    made = []
    for (bucket, holders, receivers), slices in found.items():
        # The widest elements first: each slice begins at a multiple of its own elements then.
        slices.sort(key=lambda one: -tensors[one.tensor].item_bytes)
        made.append(Movement(bucket=bucket, holders=holders, receivers=receivers, slices=tuple(slices)))
    return sorted(made, key=lambda cut: cut.bucket)


def _boxes(
    tensor: LaidOutTensor,
) -> Iterator[tuple[tuple[Interval, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    """Boxes of a tensor with the ranks that hold and that need each."""
    source, target = tensor.source, tensor.target
    before, after = source.extents(tensor.shape), target.extents(tensor.shape)
    if 0 in tensor.shape:
        return
    addends = _addends(source)
    dims = [
        _classes([one[d] for one in before], [one[d] for one in after], tensor.shape[d])
        for d in range(len(tensor.shape))
    ]
    everyone = ((1 << len(before)) - 1, (1 << len(after)) - 1)
    for cell in itertools.product(*(kinds.items() for kinds in dims)):
        held, needed = everyone
        for (holds, needs), _ in cell:
            held, needed = held & holds, needed & needs
        if not needed:
            continue
        holders = tuple(
            tuple(sorted(source.ranks[place] for place in own if held >> place & 1)) for own in addends
        )
        receivers = tuple(sorted(rank for place, rank in enumerate(target.ranks) if needed >> place & 1))
        for box in itertools.product(*(intervals for _, intervals in cell)):
            if not all(holders):
                raise InputError(
                    f"no rank of the source holds {list(box)} of tensor {tensor.name!r}, which rank {receivers[0]} "
                    "needs; expected a source that holds every element"
                )
            yield box, holders, receivers


def _addends(source: Sharding) -> list[list[int]]:
    """Positions of the ranks that hold each partial sum."""
    found: dict[tuple[int, ...], list[int]] = {}
    for position in range(len(source.ranks)):
        place = source.coordinates(position)
        found.setdefault(tuple(place[axis] for axis in source.partial), []).append(position)
    return list(found.values())


def _classes(
    before: Sequence[Intervals], after: Sequence[Intervals], size: int
) -> dict[tuple[int, int], list[Interval]]:
    """Intervals of a dimension by the sets of positions, as bits, that hold and that need them.

    Each lies inside one interval of every rank, and so in one piece in its memory.
    """
    changes: dict[int, list[int]] = {0: [0, 0], size: [0, 0]}
    for side, extents in enumerate((before, after)):
        for position, intervals in enumerate(extents):
            for end in itertools.chain.from_iterable(intervals):
                changes.setdefault(end, [0, 0])[side] ^= 1 << position
    found: dict[tuple[int, int], list[Interval]] = {}
    held = needed = 0
    for start, stop in itertools.pairwise(sorted(changes)):
        held, needed = held ^ changes[start][0], needed ^ changes[start][1]
        found.setdefault((held, needed), []).append((start, stop))
    return found
