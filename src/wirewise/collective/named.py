"""Programs by the names that traces and plans use for the collectives of training libraries.

"ring": round a ring of all ranks. "tree": up a binary tree and down again. "ps": push to servers and pull from them.
"hierarchical": to the first rank of each host, round a ring of these, and back. Collectives other than all-reduce
have one algorithm each.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

from wirewise.collective.builders import build
from wirewise.collective.program import Message, Program
from wirewise.collective.regular import REGULAR, regular
from wirewise.collective.relations import Collective
from wirewise.errors import InputError

__all__ = ["ALGORITHMS", "Flows", "Hop", "collective_flows", "collective_hops", "named_program"]

_ALL_REDUCES: dict[str, str] = {"ring": "ring", "tree": "binary", "ps": "servers", "hierarchical": "leaders"}
ALGORITHMS = tuple(_ALL_REDUCES)
"""Names of all-reduces."""

_OTHERS: dict[str, tuple[Collective, str]] = {
    "all_gather": ("all_gather", "ring"),
    "reduce_scatter": ("reduce_scatter", "ring"),
    "all_to_all": ("all_to_all", "shift"),
    "broadcast": ("broadcast", "binary"),
    # A message between two ranks.
    "send": ("broadcast", "binary"),
    "recv": ("broadcast", "binary"),
}


class Flows(NamedTuple):
    """Bytes between hosts in a collective, and the number of sequential latencies."""

    flows: list[tuple[int, int, float]]
    """(source host, destination host, bytes)."""
    rounds: int


class Hop(NamedTuple):
    """Message between two ranks."""

    source: int
    """Index of the sender in the group."""
    target: int
    size_bytes: float
    step: int
    after: tuple[int, ...]
    """Indices of the hops that must end before, as they deliver its bytes or use its edge."""


def named_program(
    collective: str, hosts: Sequence[int], algorithm: str = "ring", *, servers: int = 1
) -> Program:
    """Build the program of a collective.

    Args:
        collective: Name in `trace.COLLECTIVES` that stands for messages.
        hosts: Host of each rank of the group; the first one is the source of a broadcast.
        algorithm: One of `ALGORITHMS`; all but all_reduce ignore it.
        servers: Number of first ranks that each hold a part of the values, for "ps".

    Raises:
        InputError: The algorithm is unknown, or the servers are not ranks of the group.
    """
    ranks = len(hosts)
    if algorithm not in ALGORITHMS:
        raise InputError(f"got the algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    if collective != "all_reduce":
        return _built(*_OTHERS[collective], ranks)
    if algorithm == "ps" and not 1 <= servers <= ranks:
        raise InputError(f"got {servers} servers for {ranks} ranks; expected 1 to {ranks} servers")
    grouped = defaultdict[int, list[int]](list)
    if algorithm == "hierarchical":
        for rank, host in enumerate(hosts):
            grouped[host].append(rank)
    of_hosts = tuple(map(tuple, grouped.values()))
    return _built("all_reduce", _ALL_REDUCES[algorithm], ranks, of_hosts, servers if algorithm == "ps" else 1)


def collective_flows(
    collective: str, hosts: Sequence[int], size_bytes: float, algorithm: str = "ring", *, servers: int = 1
) -> Flows:
    """Bytes between hosts of a collective, treated as one transfer.

    Args:
        collective: Name in `trace.COLLECTIVES`; a barrier or an unknown name sends nothing.
        hosts: Host of each rank of the group; for send and recv, of the two ends.
        size_bytes: Payload of one rank, in bytes (all_gather and all_to_all: its input).
        algorithm: One of `ALGORITHMS`; all but all_reduce ignore it.
        servers: Number of first ranks that each hold a part of the values, for "ps".

    Raises:
        InputError: Raised by `named_program`.
    """
    if not _sends(collective, hosts, size_bytes, algorithm):
        return Flows([], 0)
    pairs, divisor, rounds = _counted(collective, tuple(hosts), algorithm, servers)
    return Flows([(a, b, count * size_bytes / divisor) for a, b, count in pairs], rounds)


def collective_hops(
    collective: str,
    hosts: Sequence[int],
    size_bytes: float,
    algorithm: str = "ring",
    *,
    servers: int = 1,
    splits: Sequence[Sequence[float]] | None = None,
) -> list[Hop]:
    """Messages of a collective in dependency order, with the bytes of `collective_flows`.

    Args:
        collective: Name as for `collective_flows`.
        hosts: Host of each rank of the group, as for `collective_flows`.
        size_bytes: Payload of one rank, in bytes, as for `collective_flows`.
        algorithm: One of `ALGORITHMS`; all but all_reduce ignore it.
        servers: Number of first ranks that each hold a part of the values, for "ps".
        splits: Bytes from each rank to each other in an all_to_all. Defaults to equal parts.

    Raises:
        InputError: Raised by `named_program`.
    """
    if not _sends(collective, hosts, size_bytes, algorithm):
        return []
    program = named_program(collective, hosts, algorithm, servers=servers)
    divisor = _divisor(program)
    sized = [
        (m, splits[m.source][m.target] if splits else len(m.transfers) * size_bytes / divisor)
        for m in program.messages()
    ]
    sized = [(message, size) for message, size in sized if size > 0]
    after = _after([message for message, _ in sized], _way(program))
    return [
        Hop(m.source, m.target, size, m.step, behind) for (m, size), behind in zip(sized, after, strict=True)
    ]


def _sends(collective: str, hosts: Sequence[int], size_bytes: float, algorithm: str) -> bool:
    if algorithm not in ALGORITHMS:
        raise InputError(f"got the algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    return len(hosts) > 1 and size_bytes > 0 and collective not in ("", "barrier")


@lru_cache(maxsize=64)
def _built(
    collective: Collective, name: str, ranks: int, hosts: tuple[tuple[int, ...], ...] = (), servers: int = 1
) -> Program:
    return build(collective, name, ranks, hosts=hosts, servers=servers)


@lru_cache(maxsize=1024)
def _counted(
    collective: str, hosts: tuple[int, ...], algorithm: str, servers: int
) -> tuple[list[tuple[int, int, int]], int, int]:
    """Chunks between each two hosts, chunks of a payload, and steps."""
    ranks, pairs = len(hosts), Counter[tuple[int, int]]()
    way = ("all_reduce", _ALL_REDUCES[algorithm]) if collective == "all_reduce" else _OTHERS[collective]
    if way in REGULAR:
        # A ring of 4,096 ranks has 33 million transfers, and its rule those of one rank.
        program, turns = regular(*way, ranks).rule, ranks
    else:
        program, turns = named_program(collective, hosts, algorithm, servers=servers), 1
    for (source, target), count in Counter((t.source, t.target) for t in program.transfers).items():
        for turn in range(turns):
            pairs[hosts[(source + turn) % ranks], hosts[(target + turn) % ranks]] += count
    return [(a, b, count) for (a, b), count in sorted(pairs.items())], _divisor(program), program.steps


def _divisor(program: Program) -> int:
    """Chunks of one rank's payload."""
    if program.collective in ("all_gather", "all_to_all"):
        return program.chunks // program.ranks
    return program.chunks


def _way(program: Program) -> Callable[[Message], Hashable]:
    """Key of what a message shares with others of its program in sequence; None if nothing."""
    if program.name == "servers":
        return lambda _: None
    if program.collective == "all_to_all":
        return lambda message: message.source
    return lambda message: (message.source, message.target)


def _after(messages: Sequence[Message], way: Callable[[Message], Hashable]) -> list[tuple[int, ...]]:
    """Messages that each message waits for: the last to write its chunks at either end, and the last on its way."""
    found: list[tuple[int, ...]] = []
    written: dict[tuple[int, int], list[int]] = {}
    used: dict[Hashable, int] = {}
    for _, group in itertools.groupby(messages, lambda message: message.step):
        of_step = list(group)
        writes = defaultdict[tuple[int, int], list[int]](list)
        for number, message in enumerate(of_step, len(found)):
            for t in message.transfers:
                writes[t.target, t.chunk].append(number)
        for message in of_step:
            cells = [(rank, t.chunk) for t in message.transfers for rank in (t.source, t.target)]
            before = {number for cell in cells for number in written.get(cell, ())}
            if way(message) in used:
                before.add(used[way(message)])
            found.append(tuple(sorted(before)))
        first = len(found) - len(of_step)
        used |= {way(m): n for n, m in enumerate(of_step, first) if way(m) is not None}
        written |= writes
    return found
