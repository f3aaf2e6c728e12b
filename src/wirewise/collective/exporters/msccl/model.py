"""MSCCL algorithm as its runtime reads it: thread blocks of ranks, each with steps in order."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from wirewise.collective.relations import Collective

__all__ = [
    "KINDS",
    "PROTOCOLS",
    "Algorithm",
    "Dialect",
    "Gpu",
    "Kind",
    "Limits",
    "Place",
    "Protocol",
    "Step",
    "ThreadBlock",
    "limits",
    "physical",
    "sizes",
]

Dialect = Literal["microsoft", "azure"]
Protocol = Literal["Simple", "LL", "LL128"]


class _Slots(NamedTuple):
    """Slots of one connection."""

    slot_bytes: int
    slots: int


PROTOCOLS: dict[Protocol, _Slots] = {
    "Simple": _Slots(4 * 524_288, 2),
    "LL": _Slots(32_768, 8),
    "LL128": _Slots(576_000, 8),
}
"""Maximum bytes of a send, and maximum number of sends in flight per connection, by protocol (default buffers, 8 NCCL
steps; a Simple send takes 4 of them)."""


class Kind(NamedTuple):
    """Kind of a step, which acts in this order: read `source`, receive, write `target`, send."""

    receives: bool = False
    sends: bool = False
    reads: bool = False
    """Whether it reads `source`."""
    writes: bool = False
    """Whether it writes to `target`."""
    reduces: bool = False


KINDS: dict[str, Kind] = {
    "s": Kind(sends=True, reads=True),
    "r": Kind(receives=True, writes=True),
    "rcs": Kind(receives=True, sends=True, writes=True),
    "rrs": Kind(receives=True, sends=True, reads=True, reduces=True),
    "rrc": Kind(receives=True, reads=True, writes=True, reduces=True),
    "rrcs": Kind(receives=True, sends=True, reads=True, writes=True, reduces=True),
    "cpy": Kind(reads=True, writes=True),
    "re": Kind(reads=True, writes=True, reduces=True),
    "nop": Kind(),
}
"""Kinds of steps by their name in the file; `re` adds what is at `source` to `target`, `nop` only waits."""


class Place(NamedTuple):
    """Start of chunks in a buffer of a rank: "i"nput, "o"utput or "s"cratch."""

    buffer: str
    offset: int


class Step(NamedTuple):
    """Instruction of a thread block."""

    kind: str
    source: Place | None
    target: Place | None
    chunks: int
    """Number of consecutive chunks."""
    waits_for: tuple[int, int] | None = None
    """Dependency: thread block of the same rank, and index of its step."""
    awaited: bool = False
    """Whether a step waits for this one."""


class ThreadBlock(NamedTuple):
    """Steps in order, with at most one peer to send to and one to receive from."""

    send: int
    """Rank that it sends to, or -1."""
    receive: int
    channel: int
    steps: tuple[Step, ...]


class Gpu(NamedTuple):
    """Rank and its buffer sizes in chunks; 0 if a buffer is unused."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: tuple[ThreadBlock, ...]


class Algorithm(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one file."""

    name: str
    collective: Collective | Literal["custom"]
    """Name of the collective; "custom" for any other call, of which only form, order and waiting are checked."""
    channels: int
    chunks_per_loop: int
    """Chunks of the larger buffer."""
    protocol: Protocol = "Simple"
    in_place: bool = True
    out_of_place: bool = False
    min_bytes: int = 0
    max_bytes: int = 0
    """Largest buffer of a call that uses the algorithm, in bytes; 0 for no limit."""
    gpus: tuple[Gpu, ...]


class Limits(NamedTuple):
    """Limits of a runtime."""

    steps: int
    """Maximum number of steps of a thread block."""
    blocks: int
    """Maximum number of thread blocks of a rank."""
    channels: int = 32
    blocks_per_channel: int = 32
    """Maximum number of sending, and of receiving, thread blocks of a channel."""
    chunks: int = 71
    """Maximum number of chunks of a step."""
    awaited_block: int = 127
    """Highest thread block that others can wait for: its number is stored in 8 bits."""
    nodes: int = 4096
    children: int = 1024
    attributes: int = 16
    text: int = 255
    name: int = 63


def limits(dialect: Dialect) -> Limits:
    """Limits of microsoft/msccl (src/include/msccl.h) or Azure's executor (src/include/msccl/msccl_struct.h).

    Azure/msccl-executor-nccl held 256 steps in its first versions, as microsoft/msccl does; since it has schedulers,
    it and ROCm/rccl, which adopted it, hold 64. Files of 64 steps work on all of them.
    """
    return Limits(steps=256, blocks=216) if dialect == "microsoft" else Limits(steps=64, blocks=1024)


def sizes(collective: str, ranks: int, chunks_per_loop: int) -> tuple[int, int]:
    """Number of chunks in the input and in the output of a rank."""
    part = chunks_per_loop // ranks
    whole = chunks_per_loop
    return (
        part if collective == "all_gather" else whole,
        part if collective == "reduce_scatter" else whole,
    )


def physical(algorithm: Algorithm, rank: int, place: Place) -> Place:
    """Position under the canonical name of its memory: in place, input and output share memory."""
    if not algorithm.in_place or algorithm.out_of_place or place.buffer == "s":
        return place
    part = algorithm.chunks_per_loop // len(algorithm.gpus)
    if algorithm.collective == "all_gather" and place.buffer == "i":
        return Place("o", place.offset + rank * part)
    if algorithm.collective == "reduce_scatter" and place.buffer == "o":
        return Place("i", place.offset + rank * part)
    if algorithm.collective == "reduce_scatter":
        return place
    return Place("o", place.offset)
