"""Programs carried out by messages of a torch process group: also between GPUs, by NCCL.

Step by step: all messages of a step are posted as one group of torch's, and the next step follows when they are
through. This is how a program runs where sockets cannot reach the tensors; on CPUs `Group` is faster.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.collective import Program
from wirewise.collective.program import Message
from wirewise.errors import ProgramError
from wirewise.runtime.collective.memory import REDUCTIONS, Blocks, layout

__all__ = ["run_over_torch"]


def run_over_torch(
    program: Program, blocks: Blocks, *, op: str = "sum", group: dist.ProcessGroup | None = None
) -> None:
    """Carry a program out and wait for its end.

    Args:
        program: Made for the ranks of the group.
        blocks: Flat tensors of each block that this rank has, on any device; those that it only passes on are made.
        op: One of `REDUCTIONS`, but "avg".
        group: A gloo or NCCL process group; None: the default one.

    Raises:
        ProgramError: It was made for another number of ranks.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if program.ranks != size:
        raise ProgramError(f"program {program.name!r} is for {program.ranks} ranks and the group has {size}")
    chunks = _chunks(program, blocks)
    own = [m for m in program.messages() if rank in (m.source, m.target)]
    for segment in range(layout(program, blocks).segments):
        for _, messages in itertools.groupby(own, key=lambda m: m.step):
            _take_step(list(messages), chunks, segment, rank, op, group)


def _chunks(program: Program, blocks: Blocks) -> dict[int, list[Tensor]]:
    """Segments of each chunk, where they lie."""
    device = next(iter(blocks.tensors.values())).device if blocks.tensors else torch.device("cpu")
    tensors = dict(blocks.tensors)
    for block in blocks.read_only:
        tensors[block] = tensors[block].clone()
    for block, count in blocks.elements.items():
        if block not in tensors:
            tensors[block] = torch.empty(count, dtype=blocks.dtype, device=device)
    return {
        chunk: [tensors[program.block_of(chunk)][a:b] for a, b in itertools.pairwise(bounds)]
        for chunk, bounds in layout(program, blocks).bounds.items()
    }


def _take_step(
    messages: list[Message],
    chunks: dict[int, list[Tensor]],
    segment: int,
    rank: int,
    op: str,
    group: dist.ProcessGroup | None,
) -> None:
    posted, arriving = [], []
    for message in messages:
        parts = [chunks[t.chunk][segment] for t in message.transfers]
        if not sum(part.numel() for part in parts):
            continue
        if message.source == rank:
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            posted.append(dist.P2POp(dist.isend, whole, group=group, group_peer=message.target))
        else:
            # All ranks read before any writes, so it goes to memory of its own first.
            whole = torch.cat([torch.empty_like(part) for part in parts])
            posted.append(dist.P2POp(dist.irecv, whole, group=group, group_peer=message.source))
            arriving.append((message, parts, whole))
    for work in dist.batch_isend_irecv(posted) if posted else ():
        work.wait()
    for message, parts, whole in arriving:
        values = whole.split([part.numel() for part in parts])
        for t, part, value in zip(message.transfers, parts, values, strict=True):
            (REDUCTIONS[op] if t.reduces else Tensor.copy_)(part, value)
