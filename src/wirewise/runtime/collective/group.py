"""Group of ranks that execute programs: the eight collectives on tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.collective import Collective, Program
from wirewise.errors import InputError, ProgramError
from wirewise.runtime.collective.defaults import default
from wirewise.runtime.collective.engine import Engine
from wirewise.runtime.collective.execution import Execution
from wirewise.runtime.collective.link import EdgeStatistics
from wirewise.runtime.collective.memory import REDUCTIONS, Blocks, Memory, copies_back
from wirewise.runtime.collective.prepared import Cache
from wirewise.runtime.collective.rendezvous import join
from wirewise.runtime.collective.work import Work

__all__ = ["CollectiveGroup", "connect"]

_groups = itertools.count()
_OF_BITS = ("band", "bor", "bxor")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def connect(
    store: Any = None,
    rank: int | None = None,
    size: int | None = None,
    *,
    timeout_s: float = 120.0,
    interface: str | None = None,
    deterministic: bool = False,
    windows: tuple[int, int] | None = None,
) -> CollectiveGroup:
    """Connect all ranks by separate TCP connections; all ranks must call it in the same order.

    Args:
        store: A torch store that all ranks share. Defaults to that of the default process group.
        rank: Rank of this process. Defaults to that of the default process group.
        size: Number of ranks. Defaults to that of the default process group.
        timeout_s: Seconds without any bytes after which an unresponsive peer counts as hung.
        interface: Network interface. Defaults to that of GLOO_SOCKET_IFNAME, as in the lab.
        deterministic: Reduce in the same order in every run.
        windows: Socket buffer sizes in bytes at the sender and at the receiver of each connection, which are ADAPT's
            M and N times the segment size. Defaults to the kernel's autotuning. Measured on eight ranks, a tree under
            10 % noise loses 1 % with it, and 5 to 12 % with windows of 8 segments to one.

    Raises:
        InputError: There is no default process group, and store, rank and size are not all given.
        PeerError: A rank did not join.
    """
    if store is None or rank is None or size is None:
        if not dist.is_initialized():
            raise InputError(
                "there is no default process group; call torch.distributed.init_process_group first, or give a "
                "store, a rank and a size"
            )
        rank, size = dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore(  # type: ignore[attr-defined]
            f"wirewise/collective/{next(_groups)}", dist.distributed_c10d._get_default_store()
        )
    connections = join(store, rank, size, timeout_s=timeout_s, interface=interface, windows=windows)
    return CollectiveGroup(Engine(rank, connections, timeout_s), size, deterministic=deterministic)


class CollectiveGroup:
    """Group of ranks, made by `connect`.

    All ranks call the same collectives in the same order. A tensor must not be touched from the call until the
    operation has ended. Each method takes a `program` made for it, or chooses one (see `use`), and returns when done,
    or at once with `async_op=True`. After a `PeerError` the group is unusable.
    """

    def __init__(self, engine: Engine, size: int, *, deterministic: bool = False) -> None:
        self.rank, self.size, self.deterministic = engine.rank, size, deterministic
        self._engine = engine
        self._cache = Cache(engine.rank, size)
        self._used: dict[tuple[Collective, int], list[tuple[int, Program]]] = {}
        self._operations = itertools.count(1)

    def __enter__(self) -> CollectiveGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the group is then unusable."""
        self._engine.close()

    def statistics(self) -> list[EdgeStatistics]:
        """Bytes, bandwidths and lateness of each edge of this rank, in both directions."""
        return self._engine.statistics()

    def use(self, program: Program, from_bytes: int = 0) -> None:
        """Use this program for its collective from a size on, if a call passes no other.

        Raises:
            ProgramError: The program was made for another number of ranks.
        """
        if program.ranks != self.size:
            raise ProgramError(
                f"program {program.name!r} is for {program.ranks} ranks and the group has {self.size}; "
                "make one for this group"
            )
        found = self._used.setdefault((program.collective, program.root), [])
        found[:] = sorted(
            [(b, p) for b, p in found if b != from_bytes] + [(from_bytes, program)], key=lambda u: u[0]
        )

    def choose(self, collective: Collective, size_bytes: int, root: int = 0) -> Program:
        """Program that a call without one would use."""
        fitting = [p for b, p in self._used.get((collective, root), ()) if b <= size_bytes]
        return fitting[-1] if fitting else default(collective, self.size, size_bytes, root)

    # Collectives. All take what `_Options` lists.

    def all_reduce(self, tensor: Tensor, op: str = "sum", **options: Any) -> Work:
        """Reduce a tensor over all ranks, in place.

        Args:
            tensor: Tensor of any shape, the same on all ranks; need not be contiguous.
            op: One of `REDUCTIONS`.
            options: `program`; `async_op`; `segments`, to override the program's; `deterministic`.

        Raises:
            ProgramError: The program is for another collective or group.
            PeerError: A peer is dead, hung or inconsistent.
        """
        flat = _flat(tensor)
        blocks = Blocks(flat.dtype, {0: flat.numel()}, {0: flat}, finish=_back(tensor, flat))
        return self._run("all_reduce", blocks, flat.nbytes, [tensor], op=op, **options)

    def broadcast(self, tensor: Tensor, root: int = 0, **options: Any) -> Work:
        """Broadcast the root's tensor to all ranks, in place; arguments as in `all_reduce`."""
        flat = _flat(tensor)
        finish = [] if self.rank == root else _back(tensor, flat)
        blocks = Blocks(flat.dtype, {0: flat.numel()}, {0: flat}, finish=finish)
        return self._run("broadcast", blocks, flat.nbytes, [tensor], root=root, **options)

    def reduce(self, tensor: Tensor, root: int = 0, op: str = "sum", **options: Any) -> Work:
        """Reduce a tensor to the root, in place; other ranks keep theirs. Arguments as in `all_reduce`."""
        flat = _flat(tensor)
        here = self.rank == root
        blocks = Blocks(
            flat.dtype, {0: flat.numel()}, {0: flat}, read_only=frozenset() if here else frozenset({0}),
            finish=_back(tensor, flat) if here else [],
        )  # fmt: skip
        return self._run("reduce", blocks, flat.nbytes, [tensor], root=root, op=op, **options)

    def all_gather(self, outputs: Tensor | Sequence[Tensor], tensor: Tensor, **options: Any) -> Work:
        """Gather the tensors of all ranks on all ranks.

        Args:
            outputs: One tensor of `size` times the elements, in rank order, or a list with a tensor for each rank.
            tensor: Tensor of this rank.
            options: Options of `all_reduce`.
        """
        parts, targets, finish = self._parts(outputs)
        _same(parts[self.rank], tensor)
        parts[self.rank].copy_(tensor.reshape(-1))
        blocks = Blocks(tensor.dtype, _counts(parts), dict(enumerate(parts)), finish=finish)
        return self._run("all_gather", blocks, _nbytes(parts), targets, **options)

    def reduce_scatter(
        self, output: Tensor, inputs: Tensor | Sequence[Tensor], op: str = "sum", **options: Any
    ) -> Work:
        """Reduce tensors over all ranks and scatter the result; the inputs are unchanged.

        Args:
            output: Shard of this rank.
            inputs: One tensor of all shards, in rank order, or a list with a tensor for each rank.
            op: One of `REDUCTIONS`.
            options: Options of `all_reduce`.
        """
        parts, _, _ = self._parts(inputs)
        flat = _flat(output)
        _same(flat, parts[self.rank])
        flat.copy_(parts[self.rank])
        others = frozenset(range(self.size)) - {self.rank}
        tensors = {**dict(enumerate(parts)), self.rank: flat}
        blocks = Blocks(flat.dtype, _counts(parts), tensors, read_only=others, finish=_back(output, flat))
        return self._run("reduce_scatter", blocks, _nbytes(parts), [output], op=op, **options)

    def gather(
        self, outputs: Tensor | Sequence[Tensor] | None, tensor: Tensor, root: int = 0, **options: Any
    ) -> Work:
        """Gather equal-sized tensors of all ranks at the root; `outputs` only at the root."""
        elements = dict.fromkeys(range(self.size), tensor.numel())
        if self.rank == root:
            parts, targets, finish = self._parts(outputs)
            _same(parts[root], tensor)
            parts[root].copy_(tensor.reshape(-1))
            blocks = Blocks(tensor.dtype, elements, dict(enumerate(parts)), finish=finish)
        else:
            targets = []
            blocks = Blocks(tensor.dtype, elements, {self.rank: _flat(tensor)})
        return self._run("gather", blocks, tensor.nbytes * self.size, targets, root=root, **options)

    def scatter(
        self, tensor: Tensor, inputs: Tensor | Sequence[Tensor] | None, root: int = 0, **options: Any
    ) -> Work:
        """Scatter the root's equal-sized tensors over all ranks; `inputs` only at the root."""
        elements = dict.fromkeys(range(self.size), tensor.numel())
        if self.rank == root:
            parts, _, _ = self._parts(inputs)
            _same(parts[root], tensor)
            tensor.copy_(parts[root].view(tensor.shape))
            blocks = Blocks(tensor.dtype, elements, dict(enumerate(parts)))
        else:
            flat = _flat(tensor)
            blocks = Blocks(tensor.dtype, elements, {self.rank: flat}, finish=_back(tensor, flat))
        return self._run("scatter", blocks, tensor.nbytes * self.size, [tensor], root=root, **options)

    def all_to_all(
        self, outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor], **options: Any
    ) -> Work:
        """Send a part to each rank and receive one from each.

        Args:
            outputs: One tensor of equal parts, in rank order, or a list with a tensor for each rank.
            inputs: Tensors as for `outputs`. Unequal parts need a program that sends each directly to its target.
            options: Options of `all_reduce`.
        """
        gets, targets, finish = self._parts(outputs)
        gives, _, _ = self._parts(inputs)
        n, me = self.size, self.rank
        _same(gets[me], gives[me])
        gets[me].copy_(gives[me])
        tensors = {me * n + t: part for t, part in enumerate(gives)}
        tensors |= {s * n + me: part for s, part in enumerate(gets)}
        even = isinstance(outputs, Tensor) and isinstance(inputs, Tensor)
        elements = (
            dict.fromkeys(range(n * n), gives[0].numel())
            if even
            else {b: t.numel() for b, t in tensors.items()}
        )
        blocks = Blocks(gets[0].dtype, elements, tensors, even=even, finish=finish)
        # The size decides which program is taken, so where parts differ it must not count.
        return self._run("all_to_all", blocks, _nbytes(gives) if even else 0, targets, **options)

    def barrier(self, **options: Any) -> Work:
        """Wait for all ranks and, without `async_op`, for earlier operations of this rank."""
        before = self.in_flight()
        work = self.all_reduce(torch.zeros(1, dtype=torch.int32), **options)
        if not options.get("async_op"):
            for other in before:
                other.wait()
        return work

    def in_flight(self) -> list[Work]:
        """Operations that have not ended on this rank."""
        return self._engine.in_flight()

    def relay(self, program: Program, elements: int, dtype: torch.dtype, **options: Any) -> Work:
        """Relay chunks as a rank outside of the program's group.

        Args:
            program: Program to relay for.
            elements: Number of elements of each block.
            dtype: Dtype of the members' tensors.
            options: Options of `all_reduce`.
        """
        if self.rank in program.group:
            raise ProgramError(
                f"rank {self.rank} is a member of {program.name!r}; expected it to call {program.collective}"
            )
        blocks = Blocks(dtype, dict.fromkeys(range(program.blocks), elements), {})
        return self._run(program.collective, blocks, 0, [], root=program.root, program=program, **options)

    def _parts(
        self, tensors: Tensor | Sequence[Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor], list[Any]]:
        """Flat tensors for each rank, the given ones, and what brings the values back to them."""
        if tensors is None:
            raise InputError(f"rank {self.rank} is the root and got no list of tensors; give one a rank")
        if isinstance(tensors, Tensor):
            flat = _flat(tensors)
            if flat.numel() % self.size:
                raise InputError(
                    f"got a tensor of {flat.numel()} elements for {self.size} ranks; expected equal parts"
                )
            return (
                list(flat.view(self.size, flat.numel() // self.size).unbind()),
                [tensors],
                _back(tensors, flat),
            )
        if len(tensors) != self.size:
            raise InputError(f"got {len(tensors)} tensors for {self.size} ranks; expected one a rank")
        flats = [_flat(tensor) for tensor in tensors]
        pairs = zip(tensors, flats, strict=True)
        return flats, list(tensors), [action for pair in pairs for action in _back(*pair)]

    def _run(
        self,
        collective: Collective,
        blocks: Blocks,
        size_bytes: int,
        result: list[Tensor],
        *,
        op: str = "sum",
        root: int = 0,
        program: Program | None = None,
        async_op: bool = False,
        segments: int | None = None,
        deterministic: bool | None = None,
    ) -> Work:
        program = program or self.choose(collective, size_bytes, root)
        if program.collective != collective or program.root != root or op not in REDUCTIONS:
            raise ProgramError(
                f"got program {program.name!r} for {program.collective} with root {program.root}, to {op!r}; expected "
                f"one for {collective} with root {root}, and one of {', '.join(REDUCTIONS)}"
            )
        if collective in _REDUCING and not _reducible(blocks.dtype, op):
            expected = (
                "integers or bool" if op in _OF_BITS else "a type that torch reduces on the CPU, as float32"
            )
            raise InputError(f"got the reduction {op!r} of {blocks.dtype}; expected {expected}")
        exact = self.deterministic if deterministic is None else deterministic
        prepared = self._cache.get(program, blocks, op, segments, exact)
        if op == "avg":
            # Before anything else, as copying back must see it.
            blocks.finish[:0] = [partial(_divide, blocks, program, self.rank)]
        operation = next(self._operations)
        memory = Memory(program, prepared.acts, blocks, prepared.layout, op)
        name = f"{collective} {operation} ({program.name})"
        work = Work(name, self._engine, result)
        execution = Execution(name, operation, prepared, memory, self._engine)
        self._engine.submit(execution, work, background=async_op)
        if not async_op:
            work.wait()
        return work


@cache
def _reducible(dtype: torch.dtype, op: str) -> bool:
    """Whether torch has the operation for the type; asked first, as a failure under way ends the group."""
    one = torch.zeros(1, dtype=torch.uint8).expand(dtype.itemsize).contiguous().view(dtype)
    try:
        REDUCTIONS[op](one, one.clone())
        if op == "avg":
            _average(one, 1)
    except (RuntimeError, TypeError):
        return False
    return True


def _average(total: Tensor, ranks: int) -> None:
    total.div_(ranks, rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc")


def _divide(blocks: Blocks, program: Program, rank: int) -> None:
    for block, tensor in blocks.tensors.items():
        if rank in program.ends_at(block * (program.chunks // program.blocks)):
            _average(tensor, len(program.group))


def _flat(tensor: Tensor) -> Tensor:
    """The tensor as one line in host memory; a copy where it is not already."""
    if tensor.layout != torch.strided:
        raise InputError(
            f"got a tensor of layout {tensor.layout}; expected a dense one: call to_dense() before"
        )
    dense = tensor.detach().contiguous().cpu()
    # A single element may have any stride, which a view as bytes does not forgive.
    return dense.as_strided((dense.numel(),), (1,))


def _back(tensor: Tensor, flat: Tensor) -> list[Any]:
    return copies_back(tensor.detach(), flat)


def _same(one: Tensor, other: Tensor) -> None:
    if one.numel() != other.numel() or one.dtype != other.dtype:
        raise InputError(
            f"got parts of {one.numel()} {one.dtype} and of {other.numel()} {other.dtype}; expected the same for "
            "this rank's input and output"
        )


def _counts(parts: Sequence[Tensor]) -> Mapping[int, int]:
    return {block: part.numel() for block, part in enumerate(parts)}


def _nbytes(parts: Sequence[Tensor]) -> int:
    return sum(part.nbytes for part in parts)
