"""The form of an MSCCL++ execution plan, and its rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import ProgramError

__all__ = [
    "OPERATIONS",
    "BlockGroup",
    "ChannelUse",
    "Chunks",
    "ExecutionPlan",
    "Operation",
    "PlanChannel",
    "PlanGpu",
    "PlanThreadBlock",
    "RemoteBuffer",
    "RemoteBufferUse",
    "Semaphore",
    "SwitchGroup",
    "loads",
    "violations",
]

OPERATIONS = 64
"""Maximum number of operations of a thread block."""
_SEMAPHORES = 16
"""Most semaphores of an operation."""
_CHANNELS = 16
"""Most channels of a thread block."""
_Buffer = Literal["i", "o", "s"]
_ChannelType = Literal["memory", "port", "switch"]
_OLD = "got a plan of the older form (i_chunks, sm and proxy channels); expected the form of MSCCL++ 0.7 or later"


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON object of the plan."""


class Chunks(_Record, omit_defaults=True):
    """Contiguous chunks: of a buffer of the rank (`type`), or of another rank's (`buffer_id`)."""

    index: int
    size: int
    type: str | None = None
    buffer_id: int | None = None
    """Index in the thread block's remote buffers."""
    switch_channel_id: int | None = None
    """Index in the thread block's switch channels."""


class BlockGroup(_Record):
    """Position of a thread block among those that share an operation."""

    tb_id: int
    tbg_size: int


class Operation(_Record, omit_defaults=True):
    """Operation of a thread block."""

    name: str
    src_buff: list[Chunks] = []
    dst_buff: list[Chunks] = []
    channel_type: _ChannelType | None = None
    channel_ids: list[int] = []
    """Indices in the thread block's channels."""
    semaphore_ids: list[int] = []
    reduce_op: str | None = None
    tbg_info: BlockGroup | None = None
    """Thread blocks that share the operation. Defaults to this one alone."""
    ops: list[Operation] = []
    """Operations of a pipeline."""
    iter_context: dict[str, int] | None = None
    """Size of a pipeline's rounds."""


class ChannelUse(_Record):
    """Channels of the rank that a thread block uses."""

    channel_type: _ChannelType
    channel_ids: list[int]


class RemoteBufferUse(_Record):
    """Remote buffers of the rank that a thread block uses."""

    access_channel_type: _ChannelType
    remote_buffer_ids: list[int]


class PlanThreadBlock(_Record):
    """Thread block: operations in order."""

    id: int
    ops: list[Operation]
    channels: list[ChannelUse] = []
    remote_buffer_refs: list[RemoteBufferUse] = []


class SwitchGroup(_Record):
    """Ranks of a switch channel, whose buffers it reads and writes together."""

    size: int
    ranks: list[int]


class PlanChannel(_Record, omit_defaults=True):
    """Channels of a rank; the k-th of a type to a peer connects to the peer's k-th to this rank."""

    channel_type: _ChannelType
    connected_to: list[int] = []
    buffer_type: _Buffer | None = None
    """Buffer of a switch channel."""
    rank_groups: list[SwitchGroup] = []


class RemoteBuffer(_Record):
    """Buffer of another rank."""

    rank: int
    type: _Buffer
    access_channel_types: list[_ChannelType]


class Semaphore(_Record):
    """Semaphore on which thread blocks of a rank wait."""

    init_value: int = 0


class PlanGpu(_Record):
    """Work of one rank."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: list[PlanThreadBlock]
    channels: list[PlanChannel] = []
    remote_buffers: list[RemoteBuffer] = []
    semaphores: list[Semaphore] = []


class ExecutionPlan(_Record):
    """Content of one file."""

    name: str
    collective: str
    inplace: bool
    gpus: list[PlanGpu]
    protocol: Literal["Simple", "LL"] = "Simple"
    reuse_resources: bool = False
    num_threads_per_block: int = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: int = 16
    min_message_size: int = 0
    max_message_size: int = 2**64 - 1


def loads(text: str | bytes) -> ExecutionPlan:
    """Read a plan.

    Raises:
        ProgramError: The text is not a plan, and the message names the path; or the format is older.
    """
    try:
        return decode_json(text, ExecutionPlan)
    except msgspec.DecodeError as error:
        if b'"i_chunks"' in (text if isinstance(text, bytes) else text.encode()):
            raise ProgramError(_OLD) from error
        raise ProgramError(f"cannot read a plan of MSCCL++: {error}") from error


def violations(plan: ExecutionPlan) -> Iterator[str]:
    """Find violations in a plan: limits, references, and signals that are never consumed."""
    if [gpu.id for gpu in plan.gpus] != list(range(len(plan.gpus))):
        yield f"got gpus {[gpu.id for gpu in plan.gpus]}; expected each rank once, in order"
        return
    for gpu in plan.gpus:
        for block in gpu.threadblocks:
            where = f"gpu {gpu.id}, thread block {block.id}"
            yield from _limit_violations(block, gpu, where)
            for number, operation in enumerate(block.ops):
                for fault in _operation_violations(operation, block, gpu, plan):
                    yield f"{where}, operation {number} ({operation.name}): {fault}"
    yield from _signal_violations(plan)
    yield from _semaphore_violations(plan)


def _limit_violations(block: PlanThreadBlock, gpu: PlanGpu, where: str) -> Iterator[str]:
    if len(block.ops) > OPERATIONS:
        yield (
            f"{where} has {len(block.ops)} operations; MSCCL++ holds {OPERATIONS}: take an algorithm of fewer "
            "steps, or fewer chunks"
        )
    if sum(len(use.channel_ids) for use in block.channels) > _CHANNELS:
        yield f"{where} uses more than {_CHANNELS} channels; divide it"
    held = sum(len(channel.connected_to) for channel in gpu.channels)
    for number in (number for use in block.channels for number in use.channel_ids):
        if not 0 <= number < held:
            yield f"{where} uses channel {number}; expected one of the {held} of gpu {gpu.id}"


_NAMES = ("nop", "copy", "put", "re", "signal", "wait", "flush", "sem_acquire", "sem_release")


def _operation_violations(
    op: Operation, block: PlanThreadBlock, gpu: PlanGpu, plan: ExecutionPlan
) -> Iterator[str]:
    if op.name not in _NAMES:
        yield f"unknown; expected one of {', '.join(_NAMES)}"
    if op.name in ("put", "signal", "wait", "flush"):
        held = sum(len(use.channel_ids) for use in block.channels)
        if len(op.channel_ids) != 1 or not 0 <= op.channel_ids[0] < held:
            yield f"got channels {op.channel_ids}; expected one of the {held} of the thread block"
    if len(op.semaphore_ids) > _SEMAPHORES or (op.name.startswith("sem_") and not op.semaphore_ids):
        yield f"got {len(op.semaphore_ids)} semaphores; expected 1 to {_SEMAPHORES}"
    sources = {"copy": 1, "put": 1, "re": 2}.get(op.name, 0)
    if len(op.src_buff) != sources or len(op.dst_buff) != min(sources, 1):
        yield f"got {len(op.src_buff)} sources and {len(op.dst_buff)} targets; expected {sources} and {min(sources, 1)}"
    for chunks in (*op.src_buff, *op.dst_buff):
        size = _size_of(chunks, block, gpu, plan)
        if not 0 <= chunks.index < chunks.index + chunks.size <= size:
            yield f"chunks {chunks.index} to {chunks.index + chunks.size - 1} of a buffer of {size}"


def _size_of(chunks: Chunks, block: PlanThreadBlock, gpu: PlanGpu, plan: ExecutionPlan) -> int:
    kind, owner = chunks.type, gpu
    if chunks.buffer_id is not None:
        refs = [number for use in block.remote_buffer_refs for number in use.remote_buffer_ids]
        if not 0 <= chunks.buffer_id < len(refs) or not 0 <= refs[chunks.buffer_id] < len(gpu.remote_buffers):
            return 0
        remote = gpu.remote_buffers[refs[chunks.buffer_id]]
        if not 0 <= remote.rank < len(plan.gpus):
            return 0
        kind, owner = remote.type, plan.gpus[remote.rank]
    return {"i": owner.input_chunks, "o": owner.output_chunks, "s": owner.scratch_chunks}.get(kind or "", 0)


def _signal_violations(plan: ExecutionPlan) -> Iterator[str]:
    """Channels on which one end signals more or less often than the other waits."""
    signals: Counter[tuple[int, int, int]] = Counter()
    waits: Counter[tuple[int, int, int]] = Counter()
    for gpu in plan.gpus:
        ends = [peer for channel in gpu.channels for peer in channel.connected_to]
        for block in gpu.threadblocks:
            ids = [number for use in block.channels for number in use.channel_ids]
            for op in block.ops:
                for number in op.channel_ids if op.name in ("signal", "wait") else ():
                    if not (0 <= number < len(ids) and 0 <= ids[number] < len(ends)):
                        # Told for the operation, or for the thread block.
                        continue
                    peer = ends[ids[number]]
                    nth = ends[: ids[number]].count(peer)
                    if op.name == "signal":
                        signals[gpu.id, peer, nth] += 1
                    else:
                        waits[peer, gpu.id, nth] += 1
    for key in sorted({*signals, *waits}):
        if signals[key] != waits[key]:
            source, target, nth = key
            yield (
                f"gpu {source} signals gpu {target} {signals[key]} times on channel {nth} between them, and the "
                f"other end waits {waits[key]} times; each signal needs one wait"
            )


def _semaphore_violations(plan: ExecutionPlan) -> Iterator[str]:
    for gpu in plan.gpus:
        counts = Counter(
            (number, op.name) for block in gpu.threadblocks for op in block.ops for number in op.semaphore_ids
        )
        for number in range(len(gpu.semaphores)):
            released, acquired = counts[number, "sem_release"], counts[number, "sem_acquire"]
            if released != acquired:
                yield f"gpu {gpu.id}: semaphore {number} is released {released} times and acquired {acquired} times"
