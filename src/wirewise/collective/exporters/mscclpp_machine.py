"""Execute MSCCL++ execution plans on numbers, and compare the result with their collective.

Thread blocks run in random order, several times, to expose values that are read too early; chunks have random
contents, to expose wrong sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wirewise.collective.exporters.mscclpp_plan import (
    BlockGroup,
    Chunks,
    ExecutionPlan,
    Operation,
    PlanGpu,
    PlanThreadBlock,
)
from wirewise.errors import ProgramError

__all__ = ["faults", "result_unknown", "sent_chunks"]

Values = NDArray[np.uint64]
_Key = TypeVar("_Key")
_TURNS = 3
"""Random orders of thread blocks that are tried."""
_MOST_CELLS = 1 << 24
"""Chunks of all buffers, times the parts of a chunk, that are executed."""
_SIGNALS, _WAITS = ("signal", "rlxsignal", "pws", "pwsf"), ("wait", "rlxwait")
_PLAIN = ("nop", "flush")


def result_unknown(plan: ExecutionPlan) -> str | None:
    """Reason why the result of a plan cannot be compared. None if it can."""
    if plan.collective not in _WANTED:
        return f"the plan is a {plan.collective!r}; the result of {', '.join(_WANTED)} is known"
    sizes = {(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus}
    (given, left), ranks = next(iter(sizes), (0, 0)), len(plan.gpus)
    fits = {
        "allreduce": given == left,
        "allgather": left == given * ranks,
        "reducescatter": given == left * ranks,
        "alltoall": given == left and given % ranks == 0,
        "broadcast": given == left,
    }
    if len(sizes) != 1 or not given or not fits[plan.collective]:
        told = ", ".join(f"{a} in and {b} out" for a, b in sorted(sizes))
        return f"buffers of {told} chunks are not those of an {plan.collective} of {ranks} ranks"
    return None


def faults(plan: ExecutionPlan) -> Iterator[str]:
    """Find the faults of a plan: bad references, deadlocks, unconsumed signals, wrong values.

    Raises:
        ProgramError: An operation that cannot be executed, or a plan that is too large; the message names it.
    """
    if [gpu.id for gpu in plan.gpus] != list(range(len(plan.gpus))):
        yield f"got gpus {[gpu.id for gpu in plan.gpus]}; expected each rank once, in order"
        return
    for turn in range(_TURNS):
        machine = _Machine(plan, np.random.default_rng(turn))
        found = machine.run()
        if found is None and result_unknown(plan) is None:
            found = machine.wrong_value()
        if found is not None:
            yield found
            return


def _parts(plan: ExecutionPlan) -> int:
    sizes = {_group(op).tbg_size for _, block in _blocks(plan) for op in block.ops}
    found = math.lcm(*(size for size in sizes if size > 0))
    cells = sum(gpu.input_chunks + gpu.output_chunks + gpu.scratch_chunks for gpu in plan.gpus) * found
    if not 0 < cells <= _MOST_CELLS:
        raise ProgramError(
            f"the plan has {cells} parts of chunks; expected 1 to {_MOST_CELLS}, to be carried out"
        )
    return found


def _blocks(plan: ExecutionPlan) -> Iterator[tuple[PlanGpu, PlanThreadBlock]]:
    return ((gpu, block) for gpu in plan.gpus for block in gpu.threadblocks)


def sent_chunks(plan: ExecutionPlan) -> dict[tuple[int, int], int]:
    """Chunks that each rank writes into each other rank's buffers, by source and target, without switch channels."""
    found: dict[tuple[int, int], int] = {}
    for gpu, block in _blocks(plan):
        for op in _flat(block.ops):
            kind = op.channel_type or "memory"
            refs = _remote_ids(block, kind)
            for chunks in op.dst_buff:
                if chunks.buffer_id is not None and _group(op).tb_id == 0 and chunks.buffer_id < len(refs):
                    pair = (gpu.id, gpu.remote_buffers[refs[chunks.buffer_id]].rank)
                    found[pair] = found.get(pair, 0) + chunks.size
    return found


def _remote_ids(block: PlanThreadBlock, kind: str) -> list[int]:
    """Remote buffers of the rank that a thread block reaches over channels of a kind."""
    return [
        n
        for use in block.remote_buffer_refs
        if use.access_channel_type == kind
        for n in use.remote_buffer_ids
    ]


def _flat(ops: list[Operation]) -> Iterator[Operation]:
    """Operations with those of pipelines in their place: one round of a pipeline does what all do."""
    for op in ops:
        if op.name == "pipeline":
            yield from _flat(op.ops)
        else:
            yield op


class _Fault(Exception):
    """A reference of an operation that leads nowhere."""


class _Machine:
    """Memory that ranks write into, counters that they wait on."""

    def __init__(self, plan: ExecutionPlan, random: np.random.Generator) -> None:
        self.plan, self.random, self.parts = plan, random, _parts(plan)
        self.memory: list[dict[str, Values]] = []
        self.packets: list[NDArray[np.bool_]] = []
        self.given: list[Values] = []
        for gpu in plan.gpus:
            inputs = self._fresh(gpu.input_chunks)
            buffers = {"i": inputs, "o": self._fresh(gpu.output_chunks), "s": self._fresh(gpu.scratch_chunks)}
            self.given.append(inputs.copy())
            if plan.inplace:
                _join(gpu, buffers)
            self.memory.append(buffers)
            self.packets.append(np.zeros((gpu.scratch_chunks, self.parts), np.bool_))
        self.signals: Counter[tuple[int, int, str, int]] = Counter()
        self.semaphores = Counter(
            {
                (gpu.id, number): one.init_value
                for gpu in plan.gpus
                for number, one in enumerate(gpu.semaphores)
            }
        )

    def _fresh(self, chunks: int) -> Values:
        # What a buffer held before is random, so that reading too early shows.
        return self.random.integers(0, 2**63, (chunks, self.parts), np.uint64)

    def run(self) -> str | None:
        """Carry the plan out; what is wrong, or None."""
        work = [(gpu, block, list(_flat(block.ops))) for gpu, block in _blocks(self.plan)]
        place, open_ = [0] * len(work), list(range(len(work)))
        while open_:
            moved = False
            for number in self.random.permutation(open_).tolist():
                gpu, block, ops = work[number]
                while place[number] < len(ops):
                    try:
                        if not self._step(gpu, block, ops[place[number]]):
                            break
                    except _Fault as fault:
                        return f"{_where(gpu, block, ops, place[number])}: {fault}"
                    place[number] += 1
                    moved = True
                    if self.random.random() < 0.5:
                        break
            open_ = [number for number in open_ if place[number] < len(work[number][2])]
            if not moved and open_:
                gpu, block, ops = work[open_[0]]
                return f"{_where(gpu, block, ops, place[open_[0]])} waits for ever"
        left = sorted(key for key, count in self.signals.items() if count > 0)
        if left:
            source, target, kind, nth = left[0]
            return (
                f"gpu {source} signals gpu {target} more often than that waits, on {kind} channel {nth} between "
                "them; the next call would read too early"
            )
        return None

    def _step(self, gpu: PlanGpu, block: PlanThreadBlock, op: Operation) -> bool:
        """Carry an operation out; False: it has to wait."""
        if op.name in _PLAIN:
            return True
        if op.name in ("sem_acquire", "sem_release"):
            keys = [(gpu.id, number) for number in op.semaphore_ids]
            if op.name == "sem_acquire":
                return _take(self.semaphores, keys)
            self.semaphores.update(keys)
            return True
        if op.name in _WAITS:
            return _take(self.signals, [self._key(gpu, block, op, number, True) for number in op.channel_ids])
        if op.name not in ("signal", "rlxsignal") and not self._moved(gpu, block, op):
            return False
        if op.name in _SIGNALS:
            self.signals.update(self._key(gpu, block, op, number, False) for number in op.channel_ids)
        return True

    def _key(
        self, gpu: PlanGpu, block: PlanThreadBlock, op: Operation, number: int, waits: bool
    ) -> tuple[int, int, str, int]:
        kind = op.channel_type or "memory"
        own = [n for use in block.channels if use.channel_type == kind for n in use.channel_ids]
        ends = [
            peer for channel in gpu.channels if channel.channel_type == kind for peer in channel.connected_to
        ]
        if not (0 <= number < len(own) and 0 <= own[number] < len(ends)):
            raise _Fault(f"got {kind} channel {number}; expected one of the {len(own)} of the thread block")
        peer = ends[own[number]]
        nth = ends[: own[number]].count(peer)
        return (peer, gpu.id, kind, nth) if waits else (gpu.id, peer, kind, nth)

    def _moved(self, gpu: PlanGpu, block: PlanThreadBlock, op: Operation) -> bool:
        if op.reduce_op not in (None, "sum"):
            raise ProgramError(
                f"gpu {gpu.id}: reduce_op {op.reduce_op!r} cannot be represented; expected sum"
            )
        if op.name not in _MOVES:
            raise ProgramError(
                f"gpu {gpu.id}, thread block {block.id}: operation {op.name!r} cannot be represented; expected "
                f"{', '.join((*_PLAIN, *_SIGNALS, *_WAITS, *_MOVES))}"
            )
        reads, writes, adds = _MOVES[op.name]
        width = self.parts // _group(op).tbg_size
        own = slice(_group(op).tb_id * width, (_group(op).tb_id + 1) * width)
        packets = [place in reads for place in range(len(op.src_buff))]
        sources = [self._at(gpu, block, op, chunks) for chunks in op.src_buff]
        if not sources or not op.dst_buff:
            raise _Fault(
                f"got {len(sources)} sources and {len(op.dst_buff)} targets; expected at least one of each"
            )
        for (places, span), flagged in zip(sources, packets, strict=True):
            if flagged and not all(self.packets[rank][span, own].all() for rank, _ in places):
                return False
        values = [
            sum((self.memory[rank][kind][span, own].copy() for rank, kind in places), np.uint64(0))
            for places, span in sources
        ]
        if adds:
            values = [sum(values, np.uint64(0))] * len(op.dst_buff)
        for number, chunks in enumerate(op.dst_buff):
            places, span = self._at(gpu, block, op, chunks)
            value = values[min(number, len(values) - 1)]
            for rank, kind in places:
                if self.memory[rank][kind][span, own].shape != np.shape(value):
                    raise _Fault("sources and targets differ in their numbers of chunks")
                self.memory[rank][kind][span, own] = value
                if kind == "s":
                    self.packets[rank][span, own] = number >= writes
        return True

    def _at(
        self, gpu: PlanGpu, block: PlanThreadBlock, op: Operation, chunks: Chunks
    ) -> tuple[list[tuple[int, str]], slice]:
        """Ranks and buffers that chunks stand for, and their rows."""
        places = [(gpu.id, chunks.type or "")]
        if chunks.buffer_id is not None:
            kind = op.channel_type or "memory"
            refs = _remote_ids(block, kind)
            if not (
                0 <= chunks.buffer_id < len(refs) and 0 <= refs[chunks.buffer_id] < len(gpu.remote_buffers)
            ):
                told = f"got remote buffer {chunks.buffer_id}"
                raise _Fault(f"{told}; expected one of the {len(refs)} of the thread block")
            remote = gpu.remote_buffers[refs[chunks.buffer_id]]
            places = [(remote.rank, remote.type)]
        if chunks.switch_channel_id is not None:
            own = [n for use in block.channels if use.channel_type == "switch" for n in use.channel_ids]
            groups = [
                (channel.buffer_type, group)
                for channel in gpu.channels
                if channel.channel_type == "switch"
                for group in channel.rank_groups
            ]
            number = chunks.switch_channel_id
            if not (0 <= number < len(own) and 0 <= own[number] < len(groups)):
                raise _Fault(
                    f"got switch channel {number}; expected one of the {len(own)} of the thread block"
                )
            held_by, group = groups[own[number]]
            places = [(rank, held_by or "i") for rank in group.ranks]
        for rank, buffer in places:
            if not 0 <= rank < len(self.memory) or buffer not in self.memory[rank]:
                raise _Fault(
                    f"got buffer {buffer!r} of gpu {rank}; expected i, o or s of one of {len(self.memory)}"
                )
            held = len(self.memory[rank][buffer])
            if not 0 <= chunks.index < chunks.index + chunks.size <= held:
                last = chunks.index + chunks.size - 1
                raise _Fault(
                    f"got chunks {chunks.index} to {last} of buffer {buffer!r} of gpu {rank}; "
                    f"expected some of its {held}"
                )
        return places, slice(chunks.index, chunks.index + chunks.size)

    def wrong_value(self) -> str | None:
        """The first chunk of an output that is not what the collective asks for."""
        for gpu in self.plan.gpus:
            wanted = _WANTED[self.plan.collective](self.given, gpu.id)
            found = self.memory[gpu.id]["i" if self.plan.inplace and gpu.input_chunks == len(wanted) else "o"]
            for chunk in np.flatnonzero((found != wanted).any(axis=1)).tolist():
                return f"gpu {gpu.id} ends with a wrong value in chunk {chunk} of its output"
        return None


def _group(op: Operation) -> BlockGroup:
    return op.tbg_info or BlockGroup(tb_id=0, tbg_size=1)


def _where(gpu: PlanGpu, block: PlanThreadBlock, ops: list[Operation], number: int) -> str:
    return f"gpu {gpu.id}, thread block {block.id}, operation {number} ({ops[number].name})"


def _take(counter: Counter[_Key], keys: Iterable[_Key]) -> bool:
    wanted = list(keys)
    if any(counter[key] < 1 for key in wanted):
        return False
    counter.subtract(wanted)
    return True


def _join(gpu: PlanGpu, buffers: dict[str, Values]) -> None:
    """Let input and output be the same memory."""
    given, left = gpu.input_chunks, gpu.output_chunks
    if given == left:
        buffers["o"] = buffers["i"]
    elif given < left:
        buffers["o"][gpu.id * given : (gpu.id + 1) * given] = buffers["i"]
        buffers["i"] = buffers["o"][gpu.id * given : (gpu.id + 1) * given]
    else:
        buffers["o"] = buffers["i"][gpu.id * left : (gpu.id + 1) * left]


_NONE = frozenset[int]()
_AFTER_FIRST = frozenset(range(1, 64))
_ALL = frozenset(range(64))
_MOST = 64
_MOVES: dict[str, tuple[frozenset[int], int, bool]] = {
    "copy": (_NONE, _MOST, False),
    "put": (_NONE, _MOST, False),
    "pws": (_NONE, _MOST, False),
    "pwsf": (_NONE, _MOST, False),
    "get": (_NONE, _MOST, False),
    "gstore": (_NONE, _MOST, False),
    "glres": (_NONE, _MOST, False),
    "re": (_NONE, _MOST, True),
    "res": (_NONE, _MOST, True),
    "rre": (_NONE, _MOST, True),
    "rres": (_NONE, _MOST, True),
    "ppkt": (_NONE, 0, False),
    "cpkt": (_NONE, 0, False),
    "rppkt": (_ALL, 0, False),
    "upkt": (_ALL, _MOST, False),
    "repkt": (_AFTER_FIRST, _MOST, True),
    "respkt": (_AFTER_FIRST, 1, True),
    "recpkt": (_AFTER_FIRST, 1, True),
    "recspkt": (_AFTER_FIRST, 1, True),
}
"""Sources that are packets, which are waited for; the first target that is packets; whether sources are added up."""

_WANTED: dict[str, Callable[[list[Values], int], Values]] = {
    "allreduce": lambda given, rank: np.sum(given, axis=0, dtype=np.uint64),
    "allgather": lambda given, rank: np.concatenate(given),
    "reducescatter": lambda given, rank: np.array_split(np.sum(given, axis=0, dtype=np.uint64), len(given))[
        rank
    ],
    "alltoall": lambda given, rank: np.concatenate([np.array_split(one, len(given))[rank] for one in given]),
    "broadcast": lambda given, rank: given[0],
}
