"""Multicast along trees of ranks, chunk by chunk: a rank forwards a chunk while the next one arrives.

gloo's receives cannot be polled: a thread follows each tree on which this rank passes something on, and waits for its
chunks in order. All receives are posted at the start, so a sender waits for nobody's program; it has a bounded number
of chunks of an edge in flight. On devices the chunks of all trees move in common steps, each of which is one group of
messages, so that NCCL's messages match without a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.plans.reshard import MulticastTree
from wirewise.runtime.transport import Transport

__all__ = ["WINDOW", "Leg", "first_tag", "run_trees", "run_trees_in_steps", "sum_partials"]

WINDOW = 16
"""Maximum number of chunks of an edge in flight."""

_FIRST_TAG, _TAGS = 2**30, 2**30
"""Above the tags of pipelines, which may use the same group."""
_TAKEN: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_LOCK = threading.Lock()


class Leg(NamedTuple):
    """Part of one rank in a tree."""

    tree: MulticastTree
    round: int
    tag: int
    """Tag unique among the trees in flight between the same ranks."""
    data: Tensor
    """Bytes of the tree's part to send or to fill, uint8 [size]."""
    parent: int | None
    """Rank that sends to this one. None if this rank is the tree's sender."""
    children: tuple[int, ...]
    what: str
    """Description for error messages."""
    adds: bool = False
    """Whether it is a partial sum to be reduced at its target."""


def first_tag(group: Any, tags: int) -> int:
    """Reserve tags unique among calls on the group; all ranks must call it in the same order.

    Args:
        group: Process group of the call.
        tags: Number of tags to reserve.
    """
    with _LOCK:
        taken = _TAKEN.get(group, 0)
        if taken % _TAGS + tags > _TAGS:
            taken = 0
        _TAKEN[group] = taken + tags
    return _FIRST_TAG + taken


def run_trees(
    transport: Transport,
    legs: Sequence[Leg],
    chunk_bytes: int,
    *,
    before: Callable[[int], None] = lambda _: None,
    window: int = WINDOW,
) -> None:
    """Execute this rank's part in all trees, and wait until it is done.

    Args:
        transport: Messages between all ranks.
        legs: Parts of this rank, in the order of rounds.
        chunk_bytes: Bytes forwarded at a time.
        before: Called with each round in which this rank sends, before it does.
        window: Number of chunks of an edge in flight.

    Raises:
        PeerError: A peer closed its connection or timed out.
    """
    followed = [(leg, _posted(transport, leg, chunk_bytes)) for leg in legs if leg.parent is not None]
    errors: list[BaseException] = []
    threads = [
        threading.Thread(
            target=_follow, args=(transport, leg, works, chunk_bytes, window, errors), daemon=True
        )
        for leg, works in followed
        if leg.children
    ]
    for thread in threads:
        thread.start()
    try:
        own = [leg for leg in legs if leg.parent is None]
        for round_ in sorted({leg.round for leg in own}):
            before(round_)
            _send(transport, [leg for leg in own if leg.round == round_], chunk_bytes, window)
        for leg, works in followed:
            if not leg.children:
                for _, work in works:
                    transport.guard(partial(work.wait, transport.timeout), leg.what, leg.parent)
    except BaseException as error:
        errors.append(error)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _chunks(leg: Leg, chunk_bytes: int) -> list[Tensor]:
    """Chunks of a leg; a tree of one edge passes nothing on and needs one."""
    step = chunk_bytes if len(leg.tree.edges) > 1 else max(leg.tree.size_bytes, 1)
    return [leg.data[begin : begin + step] for begin in range(0, leg.tree.size_bytes, step)]


def _posted(transport: Transport, leg: Leg, chunk_bytes: int) -> list[tuple[Tensor, Any]]:
    works: list[tuple[Tensor, Any]] = []
    parent = leg.parent
    assert parent is not None

    def post() -> None:
        for chunk in _chunks(leg, chunk_bytes):
            works.append((chunk, transport.group.recv([chunk], parent, leg.tag)))

    transport.guard(post, leg.what, leg.parent)
    return works


def _follow(
    transport: Transport,
    leg: Leg,
    works: list[tuple[Tensor, Any]],
    chunk_bytes: int,
    window: int,
    errors: list,
) -> None:
    """Pass on each chunk as it arrives."""
    under_way: deque[tuple[int, Any]] = deque()
    try:
        for chunk, work in works:
            transport.guard(partial(work.wait, transport.timeout), leg.what, leg.parent)
            for child in leg.children:
                _post_send(transport, leg, chunk, child, under_way)
            _drain(transport, leg, under_way, window * len(leg.children))
        _drain(transport, leg, under_way, 0)
    except BaseException as error:
        errors.append(error)


def _send(transport: Transport, legs: Sequence[Leg], chunk_bytes: int, window: int) -> None:
    """Send all of a round, the trees alternately."""
    under_way: list[deque[tuple[int, Any]]] = [deque() for _ in legs]
    chunks = [_chunks(leg, chunk_bytes) for leg in legs]
    for number in range(max(map(len, chunks), default=0)):
        for leg, own, waiting in zip(legs, chunks, under_way, strict=True):
            if number < len(own):
                for child in leg.children:
                    _post_send(transport, leg, own[number], child, waiting)
                _drain(transport, leg, waiting, window * len(leg.children))
    for leg, waiting in zip(legs, under_way, strict=True):
        _drain(transport, leg, waiting, 0)


def _post_send(transport: Transport, leg: Leg, chunk: Tensor, child: int, under_way: deque) -> None:
    def post() -> None:
        under_way.append((child, transport.group.send([chunk], child, leg.tag)))

    transport.guard(post, leg.what, child)


def _drain(transport: Transport, leg: Leg, under_way: deque, maximum: int) -> None:
    while len(under_way) > maximum:
        child, work = under_way.popleft()
        transport.guard(partial(work.wait, transport.timeout), leg.what, child)


def run_trees_in_steps(
    transport: Transport,
    legs: Sequence[Leg],
    chunk_bytes: int,
    first_step: Callable[[int], int],
    *,
    before: Callable[[int], None] = lambda _: None,
) -> None:
    """Execute this rank's part in all trees in common steps; arguments and errors as in `run_trees`.

    Chunk k crosses an edge that is d edges below the sender in step k + d of the tree's round.

    Args:
        transport: Messages between all ranks.
        legs: Parts of this rank.
        chunk_bytes: Bytes forwarded at a time.
        first_step: First step of a round, the same on all ranks.
        before: Called with each round in which this rank sends, before it does.
    """
    steps: dict[int, list[tuple[Leg, int, int, bool, Tensor]]] = {}
    begins: dict[int, int] = {}
    for leg in legs:
        depth = {leg.tree.sender: 0}
        for here, there in leg.tree.edges:
            depth[there] = depth[here] + 1
        if leg.parent is None:
            begins[first_step(leg.round)] = leg.round
        for number, chunk in enumerate(_chunks(leg, chunk_bytes)):
            begin = first_step(leg.round) + number + depth[transport.rank]
            if leg.parent is not None:
                steps.setdefault(begin - 1, []).append((leg, number, leg.parent, False, chunk))
            for child in leg.children:
                steps.setdefault(begin, []).append((leg, number, child, True, chunk))
    for step in sorted({*steps, *begins}):
        if step in begins:
            before(begins[step])
        # The same order on both sides of an edge.
        moves = sorted(steps.get(step, []), key=lambda move: (move[0].tag, move[1], move[2]))
        _one_step(transport, moves)


def _one_step(transport: Transport, moves: list[tuple[Leg, int, int, bool, Tensor]]) -> None:
    if not moves:
        return
    what = moves[0][0].what
    works: list[tuple[int, Any]] = []

    def start() -> None:
        if transport.on_device:
            operations = [
                dist.P2POp(dist.isend if sends else dist.irecv, chunk, peer, transport.group)
                for _, _, peer, sends, chunk in moves
            ]
            works.extend((moves[0][2], work) for work in dist.batch_isend_irecv(operations))
            return
        for leg, _, peer, sends, chunk in moves:
            post = transport.group.send if sends else transport.group.recv
            works.append((peer, post([chunk], peer, leg.tag)))

    transport.guard(start, what, moves[0][2])
    for peer, work in works:
        transport.guard(
            work.wait if transport.on_device else partial(work.wait, transport.timeout), what, peer
        )


def sum_partials(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Sum packed partial sums in the given order, uint8 [size]."""
    total = parts[0].clone().view(dtype)
    for part in parts[1:]:
        total += part.view(dtype)
    return total.view(torch.uint8)
