"""Programs as Chakra execution traces, which ASTRA-sim and other simulators replay: one file per rank.

A trace is a series of protobuf messages, each after its length: one `GlobalMetadata`, then a `Node` for each send,
receive and, if additions take time, addition (mlcommons/chakra, schema/protobuf/et_def.proto).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from wirewise.collective.program import Message, Program
from wirewise.collective.regular import RegularProgram
from wirewise.files import atomic_file

__all__ = ["Node", "nodes", "nodes_of", "save", "trace"]

_VERSION = "0.0.4"
_COMPUTE, _SEND, _RECEIVE = 4, 5, 6
"""Values of the enumeration NodeType."""


class Node(NamedTuple):
    """Operation of a rank."""

    id: int
    name: str
    kind: int
    waits_for: tuple[int, ...]
    """Nodes of the same rank."""
    duration_s: float
    numbers: dict[str, int]
    """Attributes: comm_src, comm_dst, comm_tag (of 32 bits) and comm_size."""


Made: TypeAlias = dict[int, list[Node]]
"""Nodes by rank."""


class _Cell(NamedTuple):
    """Last users of a chunk of a rank."""

    writers: list[int]
    readers: list[int]


def save(
    program: Program,
    prefix: str | os.PathLike[str],
    size_bytes: float,
    *,
    reduce_s_per_byte: float = 0.0,
) -> list[Path]:
    """Write `PREFIX.RANK.et` for each rank, as ASTRA-sim's --workload-configuration=PREFIX expects.

    Args:
        program: Program to write.
        prefix: Path without rank and suffix.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        reduce_s_per_byte: Time of a reduction per byte, in seconds. With 0 the trace has no reductions.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    paths = []
    for rank, found in enumerate(nodes(program, size_bytes, reduce_s_per_byte=reduce_s_per_byte)):
        paths.append(Path(f"{os.fspath(prefix)}.{rank}.et"))
        with atomic_file(paths[-1]) as file:
            file.write(trace(found))
    return paths


def nodes(program: Program, size_bytes: float, *, reduce_s_per_byte: float = 0.0) -> list[list[Node]]:
    """Nodes of each rank; arguments as in `save`.

    A node depends only on what the program's semantics require: a send on the writers of its chunks in lower steps, a
    receive on earlier reads and writes of them. Each segment is a separate message.
    """
    sizes = program.chunk_bytes(size_bytes)
    made: Made = defaultdict(list)
    messages = list(enumerate(program.messages()))
    for segment in range(program.segments):
        _add_segment(program, segment, sizes, reduce_s_per_byte, messages, made)
    return [made[rank] for rank in range(program.ranks)]


def nodes_of(
    program: RegularProgram, rank: int, size_bytes: float, *, reduce_s_per_byte: float = 0.0
) -> list[Node]:
    """Nodes of one rank of a regular program, without building those of the others.

    Tags are message-class numbers, which differ between the same two ranks.

    Args:
        program: Program to write.
        rank: Rank whose nodes to build.
        size_bytes: Larger buffer of a rank, in or out, in bytes.
        reduce_s_per_byte: Time of a reduction per byte, in seconds. With 0 the trace has no reductions.
    """
    made: Made = defaultdict(list)
    messages, sizes = program.messages_of(rank), program.rule.chunk_bytes(size_bytes)
    for segment in range(program.segments):
        _add_segment(program.rule, segment, sizes, reduce_s_per_byte, messages, made)
    return made[rank]


def trace(nodes: Iterable[Node]) -> bytes:
    """Encode the nodes of one rank as file content."""
    messages = [_text(1, _VERSION), *map(_node, nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _add_segment(
    program: Program,
    segment: int,
    sizes: list[float],
    reduce_s_per_byte: float,
    messages: list[tuple[int, Message]],
    made: Made,
) -> None:
    cells: dict[tuple[int, int], _Cell] = defaultdict(lambda: _Cell([], []))
    steps: dict[int, list[tuple[int, Message]]] = defaultdict(list)
    for number, message in messages:
        steps[message.step].append((number, message))
    for own in steps.values():
        for number, message in own:
            _add_send(message, _numbers(program, message, number, segment, sizes), cells, made)
        written: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, message in own:
            about = _numbers(program, message, number, segment, sizes)
            last = _add_receive(message, about, cells, reduce_s_per_byte, made)
            for t in message.transfers:
                written[t.target, t.chunk].append(last)
        for cell, writers in written.items():
            cells[cell] = _Cell(writers, [])


def _numbers(
    program: Program, message: Message, number: int, segment: int, sizes: list[float]
) -> dict[str, int]:
    return {
        "comm_src": message.source,
        "comm_dst": message.target,
        "comm_tag": number * program.segments + segment,
        "comm_size": round(sum(sizes[t.chunk] for t in message.transfers) / program.segments),
    }


def _add_send(
    message: Message, about: dict[str, int], cells: dict[tuple[int, int], _Cell], made: Made
) -> None:
    own = [cells[message.source, t.chunk] for t in message.transfers]
    waits = {writer for cell in own for writer in cell.writers}
    number = _add(made[message.source], f"send {about['comm_tag']}", _SEND, waits, 0.0, about)
    for cell in own:
        cell.readers.append(number)


def _add_receive(
    message: Message,
    about: dict[str, int],
    cells: dict[tuple[int, int], _Cell],
    reduce_s_per_byte: float,
    made: Made,
) -> int:
    own = [cells[message.target, t.chunk] for t in message.transfers]
    waits = {other for cell in own for other in (*cell.writers, *cell.readers)}
    number = _add(made[message.target], f"receive {about['comm_tag']}", _RECEIVE, waits, 0.0, about)
    if reduce_s_per_byte and any(t.reduces for t in message.transfers):
        duration_s = about["comm_size"] * reduce_s_per_byte
        return _add(made[message.target], f"add {about['comm_tag']}", _COMPUTE, {number}, duration_s, {})
    return number


def _add(
    rank: list[Node], name: str, kind: int, waits: set[int], duration_s: float, about: dict[str, int]
) -> int:
    rank.append(Node(len(rank) + 1, name, kind, tuple(sorted(waits)), duration_s, about))
    return len(rank)


def _node(node: Node) -> bytes:
    parts = [_number(1, node.id), _text(2, node.name), _number(3, node.kind)]
    if node.waits_for:
        parts.append(_bytes(5, b"".join(map(_varint, node.waits_for))))
    if node.duration_s:
        parts.append(_number(7, max(1, round(node.duration_s * 1e6))))
    parts.append(_bytes(10, _text(1, "is_cpu_op") + _number(27, 0)))
    for name, value in node.numbers.items():
        field = 9 if name == "comm_size" else 7
        parts.append(_bytes(10, _text(1, name) + _number(field, value)))
    return b"".join(parts)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    return bytes(_septets(value))


def _septets(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
