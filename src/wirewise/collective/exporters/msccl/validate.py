"""Rules of MSCCL's parsers and interpreters, and a check that a file computes its collective.

The rules are those of microsoft/msccl (src/graph/topo.cc, include/msccl.h) and of Azure's executor
(src/misc/msccl/msccl_parser.cc). Stricter than both: whole intervals must lie in their buffers, connections must
pair, there must be no races and no deadlocks (with one send per connection by default), and the result must be right
whatever outputs and scratch buffers contain before.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from wirewise.collective.exporters.msccl.form import Violation, form_violations
from wirewise.collective.exporters.msccl.interpreter import (
    Array,
    buffers,
    deadlocked_steps,
    execute,
    find_unwritten,
    min_chunks_per_send,
)
from wirewise.collective.exporters.msccl.model import KINDS, PROTOCOLS, Algorithm, Dialect
from wirewise.collective.exporters.msccl.races import find_races
from wirewise.collective.exporters.msccl.xml import loads
from wirewise.errors import ProgramError

__all__ = [
    "RULES",
    "Violation",
    "check",
    "expected_output",
    "largest_call_bytes",
    "result_unknown",
    "violations",
]

RULES = {
    "xml": "The file is XML with one element `algo`.",
    "attribute": "Every attribute that the parser asks for is there.",
    "integer": "Numbers are integers.",
    "text": "A string has at most 255 characters, the name of the algorithm 63.",
    "attributes": "An element has at most 16 attributes.",
    "children": "An element has at most 1024 elements in it.",
    "nodes": "A rank stores at most 4096 elements: all `gpu`, and its own thread blocks and steps.",
    "protocol": "`proto` is Simple, LL or LL128.",
    "collective": "`coll` is a call that the dialect knows.",
    "place": "`inplace` and `outofplace` are 0 or 1, and an algorithm is for at least one of the two.",
    "bytes": "`minBytes` is below `maxBytes`; with Azure, a `maxBytes` of 0 is no limit.",
    "threads": "`nthreads` is a multiple of 32.",
    "loop": "`nchunksperloop` is at least 1.",
    "gpus": "There is one `gpu` a rank, numbered from 0 to `ngpus` - 1.",
    "channels": "`nchannels` is 1 to 32, and every `chan` is below it.",
    "chunks": "Chunks of a buffer are not negative; unless 0, input and output times the ranks they are a part "
    "of make `nchunksperloop`.",
    "block ids": "Thread blocks of a rank are numbered from 0 without a gap.",
    "blocks": "A rank has at most 216 thread blocks (Azure: 1024).",
    "peers": "A peer is -1 or another rank.",
    "connection": "A peer and a channel are served by one thread block that sends and one that receives.",
    "blocks per channel": "At most 32 thread blocks of a rank send on a channel, and 32 receive.",
    "steps": "A thread block has at most 256 steps (Azure: 64), numbered from 0 in their order.",
    "kind": "A step is of a type that the interpreter carries out.",
    "buffer": "A buffer is i, o or s.",
    "range": "What a step reads and writes lies in its buffer.",
    "peer needed": "A step that sends or receives is in a thread block with that peer.",
    "count": "A step has 1 to 71 chunks, a nop 0.",
    "dependence": "`depid` and `deps` are both -1, or name a thread block of the rank and a step of it.",
    "own block": "A step does not wait for its own thread block.",
    "8 bits": "A thread block that others wait for has a number up to 127.",
    "hasdep": "A step that others wait for has hasdep=1.",
    "nop": "A nop waits for something.",
    "chain": "After nops, the last wait is on the step itself.",
    "pairing": "On each connection, sends and receives are as many, of the same counts, in the same order.",
    "deadlock": "Nothing waits for ever when a connection holds one send, or as many as are given.",
    "race": "Of two steps that use one chunk, of which one writes, one waits for the other.",
    "result": "Each rank ends with what the collective asks for, whatever outputs and scratch held before.",
}
"""Rules; the last four are checked by running the algorithm."""


def violations(
    text: str, dialect: Dialect = "microsoft", root: int = 0, fifo: int | None = 1
) -> list[Violation]:
    """Find all violations in a file: of its form first, and of its behaviour once the form is right.

    Args:
        text: Text of the XML file.
        dialect: Runtime whose parser reads the file.
        root: Root of the call, for broadcast and reduce; the file does not define it.
        fifo: Maximum number of one-chunk sends per connection. None for NCCL's limit for the file's protocol. A file
            that is valid with 1 is valid on every runtime.
    """
    try:
        tree = ET.fromstring(text)
    except ET.ParseError as error:
        return [Violation("xml", "file", f"{error}; expected one element `algo`")]
    found = list(form_violations(tree, dialect))
    return found or list(_deed_violations(loads(text, dialect), root, fifo))


def check(text: str, dialect: Dialect = "microsoft", root: int = 0, fifo: int | None = 1) -> None:
    """Raise if a file has violations; arguments as in `violations`.

    Raises:
        ProgramError: The message names the rule, the position and the number of further faults.
    """
    found = violations(text, dialect, root, fifo)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ProgramError(f"{found[0].where}: {found[0].rule}: {found[0].message}{more}")


def result_unknown(text: str, dialect: Dialect = "microsoft") -> str | None:
    """Reason why the result of a valid file cannot be compared. None if it was compared.

    Args:
        text: XML of a file whose form is right.
        dialect: Runtime whose parser reads the file.
    """
    algorithm = loads(text, dialect)
    if algorithm.collective != "custom":
        return None
    call = ET.fromstring(text).get("coll")
    used = find_unwritten(algorithm, None, min_chunks_per_send(algorithm, None) or 1).first_step
    also = f"; {used} reads memory that nobody has written" if used else ""
    return (
        f"the file does not say what a call of {call!r} ends with, so the result is not checked; form, pairing, "
        f"waiting and races are{also}"
    )


def expected_output(algorithm: Algorithm, inputs: list[Array], root: int) -> dict[int, Array]:
    """Output that each rank must end with, from the definition of the collective."""
    ranks = len(inputs)
    everyone = range(ranks)
    match algorithm.collective:
        case "all_reduce":
            return dict.fromkeys(everyone, sum(inputs[1:], inputs[0]))
        case "reduce":
            return {root: sum(inputs[1:], inputs[0])}
        case "broadcast":
            return dict.fromkeys(everyone, inputs[root])
        case "all_gather":
            return dict.fromkeys(everyone, np.concatenate(inputs))
        case "reduce_scatter":
            parts = np.split(sum(inputs[1:], inputs[0]), ranks)
            return dict(zip(everyone, parts, strict=True))
        case "all_to_all":
            sent = [np.split(given, ranks) for given in inputs]
            return {r: np.concatenate([sent[s][r] for s in everyone]) for r in everyone}
    return {}


def _deed_violations(algorithm: Algorithm, root: int, fifo: int | None) -> Iterator[Violation]:
    pairing = list(_pairing(algorithm))
    yield from pairing
    if pairing:
        return
    most_bytes = largest_call_bytes(algorithm, fifo)
    if most_bytes is not None and not 0 < algorithm.max_bytes <= most_bytes:
        yield _deadlock(algorithm, fifo, most_bytes)
        return
    for said in find_races(algorithm):
        yield Violation("race", said.partition(":")[0], f"{said}; add a depid to the later one")
    yield from _wrong_result(algorithm, root, fifo)


def largest_call_bytes(algorithm: Algorithm, fifo: int | None = None) -> int | None:
    """Largest buffer size with which an algorithm terminates, in bytes; 0 if it never does, None if it always does.

    Args:
        algorithm: Algorithm to execute.
        fifo: Maximum number of sends per connection. None for NCCL's limit for the protocol.
    """
    needed = min_chunks_per_send(algorithm, fifo)
    if needed == 1:
        return None
    return (
        0
        if needed is None
        else PROTOCOLS[algorithm.protocol].slot_bytes // needed * algorithm.chunks_per_loop
    )


def _deadlock(algorithm: Algorithm, fifo: int | None, most_bytes: int) -> Violation:
    slots = PROTOCOLS[algorithm.protocol].slots if fifo is None else fifo
    held = "one send" if slots == 1 else f"{slots} sends"
    whose = f", as NCCL's do with protocol {algorithm.protocol}" if fifo is None else ""
    waits = f"{deadlocked_steps(algorithm, fifo)[0]} for ever if a connection holds {held} of one chunk each{whose}"
    mend = "give sends and receives their own thread blocks, or put waits in one order"
    if most_bytes:
        now = f"is {algorithm.max_bytes}" if algorithm.max_bytes else "says no limit"
        mend = f"calls of up to {most_bytes} bytes end, and maxBytes {now}: set it to {most_bytes}, or {mend}"
    return Violation("deadlock", "algo", f"{waits}; {mend}")


def _pairing(algorithm: Algorithm) -> Iterator[Violation]:
    """Connections whose sends and receives are not as many, in one order, of the same counts."""
    sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for rank, gpu in enumerate(algorithm.gpus):
        for block in gpu.blocks:
            for step in block.steps:
                if KINDS[step.kind].sends:
                    sends[rank, block.send, block.channel].append(step.chunks)
                if KINDS[step.kind].receives:
                    receives[block.receive, rank, block.channel].append(step.chunks)
    for key in sorted({*sends, *receives}):
        if sends[key] != receives[key]:
            source, target, channel = key
            yield Violation(
                "pairing",
                f"gpu {source} to gpu {target}, channel {channel}",
                f"sends of {_counted(sends[key])} chunks meet receives of {_counted(receives[key])}; the "
                "two ends must be as many, of the same counts, in the same order",
            )


def _counted(counts: list[int]) -> str:
    if not counts:
        return "no"
    return ", ".join(f"{times} x {count}" for count, times in sorted(Counter(counts).items()))


def _wrong_result(algorithm: Algorithm, root: int, fifo: int | None) -> Iterator[Violation]:
    """Random integers of 40 bits: a value that is left out or added twice shows in the sum.

    What depends on memory that nobody has written is wrong whatever this machine's memory holds.
    """
    if algorithm.collective == "custom":
        return
    random = np.random.default_rng(0)
    inputs = [
        random.integers(2**40, size=(buffers(algorithm, rank)[0], 1)) for rank in range(len(algorithm.gpus))
    ]
    memory = execute(algorithm, inputs, fifo=fifo)
    undefined = find_unwritten(algorithm, fifo, min_chunks_per_send(algorithm, fifo) or 1)
    for rank, wanted in expected_output(algorithm, inputs, root).items():
        tainted = undefined.outputs[rank]
        wrong = np.flatnonzero((memory[rank]["o"] != wanted).any(axis=1) | tainted)
        if len(wrong):
            why = f" ({undefined.first_step} reads memory that nobody has written)" if tainted.any() else ""
            yield Violation(
                "result",
                f"gpu {rank}",
                f"{len(wrong)} of {len(wanted)} chunks of the output are not what {algorithm.collective} asks "
                f"for, the first of them o[{wrong[0]}]{why}; check the program with wirewise.collective.check",
            )
