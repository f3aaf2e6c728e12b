"""Programs as execution plans of MSCCL++, whose ranks write into each other's memory.

Each connection of the lowered program becomes a memory channel. A sender puts a message into a slot of the receiver's
scratch buffer and signals; the receiver waits, copies or reduces it, and signals that the slot is free. At the start
a receiver signals once that it is ready, so that slots of the previous call are no longer read. Waits between thread
blocks of a rank become semaphores. Format: microsoft/mscclpp, docs of the DSL's execution plan and
src/core/executor/execution_plan.cc; limits: src/core/include/execution_common.hpp.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from wirewise.collective.exporters.msccl import lower
from wirewise.collective.exporters.msccl.lowering import more_channels
from wirewise.collective.exporters.msccl.model import KINDS, Algorithm, Place, Step, sizes
from wirewise.collective.exporters.msccl.model import ThreadBlock as Lowered
from wirewise.collective.exporters.mscclpp_plan import (
    OPERATIONS,
    ChannelUse,
    Chunks,
    ExecutionPlan,
    Operation,
    PlanChannel,
    PlanGpu,
    PlanThreadBlock,
    RemoteBuffer,
    RemoteBufferUse,
    Semaphore,
    violations,
)
from wirewise.collective.program import Program
from wirewise.errors import InputError, ProgramError

__all__ = ["ChannelKind", "dumps", "plan"]

_CALLS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
}
ChannelKind = Literal["memory", "port"]
_Connection = tuple[int, int, int]
"""Source, target, channel."""


class _Slots(NamedTuple):
    """Where messages of a connection land in the target's scratch."""

    first: int
    size: int
    """Chunks of a slot."""
    slots: int
    messages: int

    def of(self, message: int) -> int:
        return self.first + message % self.slots * self.size

    def waits_for_room(self, message: int) -> bool:
        return message == 0 or message >= self.slots

    def frees_room(self, message: int) -> bool:
        return message + self.slots < self.messages


def dumps(
    program: Program,
    *,
    in_place: bool = False,
    instances: int = 1,
    slots: int = 2,
    min_bytes: int = 0,
    max_bytes: int = 0,
    channel: ChannelKind = "memory",
) -> str:
    """Format a program as the JSON text of an execution plan.

    Args:
        program: Program whose ranks can all map each other's memory, as within a host; any program with port
            channels.
        in_place: Whether it is for calls whose input and output are the same memory; False if for the others.
        instances: Copies that each move an equal part of every chunk, in separate thread blocks.
        slots: Maximum number of messages in flight per connection.
        min_bytes: Smallest size that the plan is for, in bytes.
        max_bytes: Largest size that the plan is for, in bytes; 0 for no limit.
        channel: Kind of all channels. Port channels are served by a CPU proxy, also between hosts by RDMA.

    Raises:
        ProgramError: MSCCL++ cannot express the program, or its limits are exceeded; the message says which.
        InputError: No slots or no instances.
    """
    count: int | None = 1
    while count is not None:
        lowered = lower(
            program,
            in_place=in_place,
            instances=instances,
            channels=count,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
        )
        made = plan(lowered, slots=slots, channel=channel)
        longest = max((len(block.ops) for gpu in made.gpus for block in gpu.threadblocks), default=0)
        count = more_channels(count, instances, longest, OPERATIONS)
    for fault in violations(made):
        raise ProgramError(f"program {program.name!r} as a plan of MSCCL++: {fault}")
    return msgspec.json.format(msgspec.json.encode(made)).decode() + "\n"


def plan(algorithm: Algorithm, *, slots: int = 2, channel: ChannelKind = "memory") -> ExecutionPlan:
    """Execution plan of a lowered program; arguments and errors as in `dumps`."""
    if slots < 1:
        raise InputError(f"got {slots} slots; expected at least 1")
    if algorithm.collective not in _CALLS:
        raise ProgramError(
            f"algorithm {algorithm.name!r} is a {algorithm.collective}; MSCCL++ has plans for {', '.join(_CALLS)}"
        )
    landings, scratch = _landings(algorithm, slots)
    return ExecutionPlan(
        name=algorithm.name,
        collective=_CALLS[algorithm.collective],
        inplace=algorithm.in_place,
        gpus=[_gpu(algorithm, rank, landings, scratch[rank], channel) for rank in range(len(algorithm.gpus))],
        min_message_size=algorithm.min_bytes,
        max_message_size=algorithm.max_bytes or 2**64 - 1,
    )


def _landings(algorithm: Algorithm, slots: int) -> tuple[dict[_Connection, _Slots], list[int]]:
    """Slots of each connection, and chunks of scratch of each rank, behind those of the program itself."""
    counts: dict[_Connection, list[int]] = defaultdict(list)
    for rank, gpu in enumerate(algorithm.gpus):
        for block in gpu.blocks:
            for step in block.steps:
                if KINDS[step.kind].sends:
                    counts[rank, block.send, block.channel].append(step.chunks)
    scratch = [gpu.scratch_chunks for gpu in algorithm.gpus]
    found = {}
    for key in sorted(counts):
        made = _Slots(scratch[key[1]], max(counts[key]), min(slots, len(counts[key])), len(counts[key]))
        found[key] = made
        scratch[key[1]] += made.size * made.slots
    return found, scratch


def _gpu(
    algorithm: Algorithm,
    rank: int,
    landings: dict[_Connection, _Slots],
    scratch: int,
    channel: ChannelKind,
) -> PlanGpu:
    # Both ends list the channels between them in the order of connections, so that the right ones meet.
    own = [key for key in sorted(landings) if rank in key[:2]]
    peers = [key[1] if key[0] == rank else key[0] for key in own]
    targets = sorted({key[1] for key in own if key[0] == rank})
    blocks = algorithm.gpus[rank].blocks
    waits = [
        (number, index, step.waits_for)
        for number, block in enumerate(blocks)
        for index, step in enumerate(block.steps)
        if step.waits_for is not None
    ]
    semaphore = {(number, index): n for n, (number, index, _) in enumerate(waits)}
    told: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, index, awaited in waits:
        told[awaited].append(semaphore[number, index])
    inputs, outputs = sizes(algorithm.collective, len(algorithm.gpus), algorithm.chunks_per_loop)
    return PlanGpu(
        id=rank,
        input_chunks=inputs,
        output_chunks=outputs,
        scratch_chunks=scratch,
        threadblocks=[
            _Block(rank, number, block, landings, semaphore, told, channel).made(own, targets)
            for number, block in enumerate(blocks)
        ],
        channels=[PlanChannel(channel_type=channel, connected_to=peers)] if peers else [],
        remote_buffers=[RemoteBuffer(rank=t, type="s", access_channel_types=[channel]) for t in targets],
        semaphores=[Semaphore(init_value=0) for _ in waits],
    )


class _Block:
    """Makes the operations of one thread block."""

    def __init__(
        self,
        rank: int,
        number: int,
        block: Lowered,
        landings: dict[_Connection, _Slots],
        semaphore: dict[tuple[int, int], int],
        told: dict[tuple[int, int], list[int]],
        channel: ChannelKind,
    ) -> None:
        self.channel: ChannelKind = channel
        self.number, self.block, self.semaphore, self.told = number, block, semaphore, told
        self.out: _Connection = (rank, block.send, block.channel)
        self.into: _Connection = (block.receive, rank, block.channel)
        self.landings = landings
        self.used = [key for key in (self.out, self.into) if key in landings]
        self.sent = self.received = 0

    def made(self, own: list[_Connection], targets: list[int]) -> PlanThreadBlock:
        channels = [own.index(key) for key in self.used]
        buffers = [targets.index(self.block.send)] if self.out in self.landings else []
        return PlanThreadBlock(
            id=self.number,
            ops=list(_with_barriers(self._operations())),
            channels=[ChannelUse(channel_type=self.channel, channel_ids=channels)] if channels else [],
            remote_buffer_refs=[RemoteBufferUse(access_channel_type=self.channel, remote_buffer_ids=buffers)]
            if buffers
            else [],
        )

    def _operations(self) -> Iterator[Operation]:
        if self.into in self.landings:
            yield self._on_channel("signal", self.into)
        waits: list[int] = []
        for index, step in enumerate(self.block.steps):
            if step.waits_for is not None:
                waits.append(self.semaphore[self.number, index])
            if step.kind == "nop":
                continue
            if waits:
                yield Operation(name="sem_acquire", semaphore_ids=waits)
                waits = []
            yield from self._step(step)
            if step.awaited:
                yield Operation(name="sem_release", semaphore_ids=self.told[self.number, index])

    def _step(self, step: Step) -> Iterator[Operation]:
        if step.kind == "s":
            yield from self._send(step)
        elif step.kind in ("r", "rrc"):
            yield from self._receive(step)
        elif step.kind == "cpy":
            yield Operation(
                name="copy", src_buff=[_local(step.source, step)], dst_buff=[_local(step.target, step)]
            )
        else:
            raise ProgramError(f"a step of type {step.kind!r} has no form in MSCCL++; lower the program anew")

    def _send(self, step: Step) -> Iterator[Operation]:
        slots = self.landings[self.out]
        if slots.waits_for_room(self.sent):
            yield self._on_channel("wait", self.out)
        lands = Chunks(buffer_id=0, index=slots.of(self.sent), size=step.chunks)
        yield Operation(
            name="put",
            src_buff=[_local(step.source, step)],
            dst_buff=[lands],
            channel_type=self.channel,
            channel_ids=[self.used.index(self.out)],
        )
        yield self._on_channel("signal", self.out)
        if self.channel == "port":
            # The proxy reads the source later; before the flush it must not change.
            yield self._on_channel("flush", self.out)
        self.sent += 1

    def _receive(self, step: Step) -> Iterator[Operation]:
        slots = self.landings[self.into]
        yield self._on_channel("wait", self.into)
        landed = Chunks(type="s", index=slots.of(self.received), size=step.chunks)
        target = [_local(step.target, step)]
        if step.kind == "rrc":
            summands = [_local(step.source, step), landed]
            yield Operation(name="re", src_buff=summands, dst_buff=target, reduce_op="sum")
        else:
            yield Operation(name="copy", src_buff=[landed], dst_buff=target)
        if slots.frees_room(self.received):
            yield self._on_channel("signal", self.into)
        self.received += 1

    def _on_channel(self, name: str, key: _Connection) -> Operation:
        return Operation(name=name, channel_type=self.channel, channel_ids=[self.used.index(key)])


def _local(place: Place | None, step: Step) -> Chunks:
    assert place is not None, "a lowered step names what it reads and writes"
    return Chunks(type=place.buffer, index=place.offset, size=step.chunks)


_SINGLE = ("signal", "wait", "flush", "sem_acquire", "sem_release")
"""Operations that a few threads of the block execute; one after the other they need no barrier."""


def _with_barriers(operations: Iterator[Operation]) -> Iterator[Operation]:
    """A `nop`, which joins all threads of the block, wherever an operation of all threads begins or ends."""
    last: Operation | None = None
    for operation in operations:
        if last is not None and not (last.name in _SINGLE and operation.name in _SINGLE):
            yield Operation(name="nop")
        yield operation
        last = operation
