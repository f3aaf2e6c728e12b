"""MSCCL algorithms executed on the CPU, step by step like the GPU's interpreter, with bounded connections.

Each thread block runs its steps in order, for one slice of the chunks after another. Waits use flags: a thread block
that others wait for raises (slice, step), and a waiter continues once the flag is high enough (microsoft/msccl,
src/collectives/device/msccl_interpreter.h).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wirewise.collective.exporters.msccl.model import (
    KINDS,
    PROTOCOLS,
    Algorithm,
    Place,
    Step,
    ThreadBlock,
    limits,
    physical,
    sizes,
)
from wirewise.errors import ProgramError

__all__ = ["Memory", "buffers", "deadlocked_steps", "execute", "find_unwritten", "min_chunks_per_send"]

Array = npt.NDArray[Any]
Memory = dict[str, Array]
"""Buffers "i", "o" and "s" of a rank, each [chunks, elements of a chunk]."""


class _Machine:
    """State that thread blocks share."""

    def __init__(
        self, algorithm: Algorithm, memory: Sequence[Memory], slots: int, chunks_a_send: int
    ) -> None:
        self.algorithm, self.memory = algorithm, memory
        self.slots, self.chunks_a_send = slots, chunks_a_send
        self.connections: dict[tuple[int, int, int], deque[Array]] = defaultdict(deque)
        self.flags: dict[tuple[int, int], tuple[int, int]] = {}
        self.waiting: dict[tuple[int, int], str] = {}
        self.progress = 0
        self.reads_unwritten: str | None = None
        """The first step that adds or sends what nobody has written; looked for by `find_unwritten` only."""

    def view(self, rank: int, place: Place, count: int, piece: slice) -> Array:
        at = physical(self.algorithm, rank, place)
        return self.memory[rank][at.buffer][at.offset : at.offset + count, piece]


class _Piece(NamedTuple):
    number: int
    elements: slice


def execute(
    algorithm: Algorithm,
    inputs: Sequence[Array],
    *,
    fifo: int | None = None,
    seed: int | None = None,
) -> list[Memory]:
    """Execute an algorithm on NumPy buffers.

    Args:
        algorithm: Algorithm to execute.
        inputs: Input of each rank, [chunks, elements of a chunk]; see `sizes`.
        fifo: Maximum number of unreceived sends per connection. Defaults to the protocol's.
        seed: Seed of the order in which thread blocks run. Defaults to the order of their numbers.

    Returns:
        Final buffers of each rank.

    Raises:
        ProgramError: The thread blocks deadlock; the message names what they wait for.
    """
    slot_bytes = PROTOCOLS[algorithm.protocol].slot_bytes
    elements, item_bytes = inputs[0].shape[1], inputs[0].dtype.itemsize
    memory = [_memory(algorithm, rank, given) for rank, given in enumerate(inputs)]
    # One send holds several chunks where they are small, or a piece of one.
    chunks_a_send = min(max(1, slot_bytes // max(1, elements * item_bytes)), limits("microsoft").chunks)
    size = max(1, min(elements, slot_bytes // item_bytes))
    pieces = [_Piece(n, slice(n * size, (n + 1) * size)) for n in range(math.ceil(elements / size))]
    machine = _Machine(algorithm, memory, _slots(algorithm, fifo), chunks_a_send)
    _run(machine, pieces, seed)
    if machine.waiting:
        raise ProgramError(
            f"algorithm {algorithm.name!r} never ends with {machine.slots} sends in a connection: "
            f"{next(iter(machine.waiting.values()))}; give each direction its own thread block or channel"
        )
    return memory


def deadlocked_steps(algorithm: Algorithm, fifo: int | None = 1, chunks_a_send: int = 1) -> list[str]:
    """Steps that deadlock if a connection holds `fifo` sends of `chunks_a_send` chunks; empty if none does.

    One chunk per send is the worst case; it occurs if a chunk fills a slot.

    Args:
        algorithm: Algorithm to execute.
        fifo: Maximum number of unreceived sends per connection. Defaults to the protocol's.
        chunks_a_send: Maximum number of a step's chunks per send.
    """
    machine = _Machine(algorithm, _memories(algorithm, 0, np.int8), _slots(algorithm, fifo), chunks_a_send)
    _run(machine, [_Piece(0, slice(0, 0))], None)
    return list(machine.waiting.values())


def min_chunks_per_send(algorithm: Algorithm, fifo: int | None = 1) -> int | None:
    """Fewest chunks per send with which the algorithm terminates. None if it never does.

    A send moves as many chunks of a step as fit into a slot, so this bounds the size of a call from above; production
    files carry that bound as `maxBytes`.

    Args:
        algorithm: Algorithm to execute.
        fifo: Maximum number of unreceived sends per connection, as in `deadlocked_steps`.
    """
    least, most = 1, max((s.chunks for gpu in algorithm.gpus for b in gpu.blocks for s in b.steps), default=1)
    if deadlocked_steps(algorithm, fifo, most):
        return None
    while least < most:
        middle = (least + most) // 2
        least, most = (middle + 1, most) if deadlocked_steps(algorithm, fifo, middle) else (least, middle)
    return least


class UnwrittenContent(NamedTuple):
    """Memory content that no step has written."""

    outputs: list[Array]
    """Whether the value of each chunk of the output depends on such memory, by rank."""
    first_step: str | None
    """The first step that reads some; None if no step does."""


def find_unwritten(algorithm: Algorithm, fifo: int | None = 1, chunks_a_send: int = 1) -> UnwrittenContent:
    """Track the undefined initial content of outputs and scratch buffers through the algorithm.

    Args:
        algorithm: Algorithm that terminates; see `deadlocked_steps`.
        fifo: Maximum number of unreceived sends per connection, as in `deadlocked_steps`.
        chunks_a_send: Maximum number of a step's chunks per send.
    """
    # A chunk is one truth value, "undefined", and a sum is undefined where one of its terms is.
    memory = _memories(algorithm, 1, np.bool_, unwritten=True)
    machine = _Machine(algorithm, memory, _slots(algorithm, fifo), chunks_a_send)
    _run(machine, [_Piece(0, slice(0, 1))], None)
    return UnwrittenContent([own["o"][:, 0] for own in memory], machine.reads_unwritten)


def _slots(algorithm: Algorithm, fifo: int | None) -> int:
    return PROTOCOLS[algorithm.protocol].slots if fifo is None else fifo


def _memories(algorithm: Algorithm, elements: int, dtype: Any, unwritten: bool = False) -> list[Memory]:
    """Buffers of all ranks, with inputs of zeros."""
    return [
        _memory(algorithm, rank, np.zeros((buffers(algorithm, rank)[0], elements), dtype), unwritten)
        for rank in range(len(algorithm.gpus))
    ]


def buffers(algorithm: Algorithm, rank: int) -> tuple[int, int]:
    """Number of input and of output chunks that a call gives to a rank."""
    gpu = algorithm.gpus[rank]
    if algorithm.collective == "custom":
        return gpu.input_chunks, gpu.output_chunks
    return sizes(algorithm.collective, len(algorithm.gpus), algorithm.chunks_per_loop)


def _memory(algorithm: Algorithm, rank: int, given: Array, unwritten: bool = False) -> Memory:
    """Buffers at the start; in place, the input lies in the output (or the output in the input).

    What is no input holds zeros, or `find_unwritten`.
    """
    inputs, outputs = buffers(algorithm, rank)
    if given.shape[0] != inputs:
        raise ProgramError(f"got an input of {given.shape[0]} chunks for rank {rank}; expected {inputs}")
    at = physical(algorithm, rank, Place("i", 0))
    if at.buffer == "o":
        # A file of another call may name one of the two only.
        outputs = max(outputs, at.offset + inputs)
    made = {
        "i": given.copy(),
        "o": np.full((outputs, given.shape[1]), unwritten, given.dtype),
        "s": np.full((algorithm.gpus[rank].scratch_chunks, given.shape[1]), unwritten, given.dtype),
    }
    if at.buffer == "o":
        made["o"][at.offset : at.offset + inputs] = given
        made["i"] = made["o"][at.offset : at.offset + inputs]
    at = physical(algorithm, rank, Place("o", 0))
    if at.buffer == "i":
        made["o"] = made["i"][at.offset : at.offset + outputs]
    return made


def _run(machine: _Machine, pieces: list[_Piece], seed: int | None) -> None:
    blocks = [
        (rank, number) for rank, gpu in enumerate(machine.algorithm.gpus) for number in range(len(gpu.blocks))
    ]
    turns = {at: _block(machine, at, pieces) for at in blocks}
    random = None if seed is None else np.random.default_rng(seed)
    while turns:
        before = machine.progress
        order = list(turns)
        if random is not None:
            random.shuffle(order)
        for at in order:
            if next(turns[at], None) is None:
                del turns[at]
                machine.waiting.pop(at, None)
                machine.progress += 1
        if machine.progress == before:
            return


def _block(machine: _Machine, at: tuple[int, int], pieces: list[_Piece]) -> Iterator[bool]:
    """One thread block; yields where another may take its turn."""
    rank, number = at
    block = machine.algorithm.gpus[rank].blocks[number]
    for piece in pieces:
        for index, step in enumerate(block.steps):
            if step.waits_for is not None:
                other, needed = step.waits_for
                while machine.flags.get((rank, other), (-1, -1)) < (piece.number, needed):
                    machine.waiting[at] = (
                        f"rank {rank}, thread block {number}, step {index} waits for step {needed} of "
                        f"thread block {other}"
                    )
                    yield False
            for begin in range(0, step.chunks, machine.chunks_a_send):
                yield from _send(machine, at, block, index, begin, piece)
            if step.awaited:
                machine.flags[at] = (piece.number, index)
            machine.progress += 1
            yield True


def _send(
    machine: _Machine, at: tuple[int, int], block: ThreadBlock, index: int, begin: int, piece: _Piece
) -> Iterator[bool]:
    """Send up to `chunks_a_send` chunks of one step."""
    rank, number = at
    step, kind = block.steps[index], KINDS[block.steps[index].kind]
    count = min(machine.chunks_a_send, step.chunks - begin)
    value = _value(machine, rank, step, begin, count, piece)
    if value.dtype == np.bool_ and machine.reads_unwritten is None and value.any():
        machine.reads_unwritten = f"rank {rank}, thread block {number}, step {index} ({step.kind})"
    if kind.receives:
        line = machine.connections[block.receive, rank, block.channel]
        while not line:
            machine.waiting[at] = (
                f"rank {rank}, thread block {number}, step {index} waits for a message of rank {block.receive} "
                f"on channel {block.channel}"
            )
            yield False
        received = line.popleft()
        machine.progress += 1
        value = received + value if kind.reduces else received
    if kind.writes and step.target is not None:
        target = step.target._replace(offset=step.target.offset + begin)
        machine.view(rank, target, count, piece.elements)[...] = value
    if kind.sends:
        line = machine.connections[rank, block.send, block.channel]
        while len(line) >= machine.slots:
            machine.waiting[at] = (
                f"rank {rank}, thread block {number}, step {index} waits for room to send to rank {block.send} "
                f"on channel {block.channel}"
            )
            yield False
        line.append(np.array(value))
        machine.progress += 1
    machine.waiting.pop(at, None)


def _value(machine: _Machine, rank: int, step: Step, begin: int, count: int, piece: _Piece) -> Array:
    """Value that a step reads from memory; zero for sums where it reads nothing."""
    kind = KINDS[step.kind]
    value: Array = np.zeros(())
    if kind.reads and step.source is not None:
        source = step.source._replace(offset=step.source.offset + begin)
        value = machine.view(rank, source, count, piece.elements)
    if step.kind == "re" and step.target is not None:
        target = step.target._replace(offset=step.target.offset + begin)
        value = value + machine.view(rank, target, count, piece.elements)
    return value
