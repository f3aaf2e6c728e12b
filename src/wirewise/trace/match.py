"""Matching of the ranks' communications to collectives and messages."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wirewise.errors import TraceError
from wirewise.trace.messages import sent_and_received
from wirewise.trace.records import Op, Trace

__all__ = ["ENDS_TOGETHER", "Match", "causes", "match", "slot_starts", "transfer_starts"]

ENDS_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that end on all ranks at about the same time."""

_NO_SEQ = ("send", "recv")
_OWN_SIZE = ("all_to_all", "barrier")


@dataclass(frozen=True)
class Match:
    """One collective, or one message from `ranks[0]` to `ranks[1]`."""

    group: str
    seq: int
    """Sequence number in its group; for a message, between its two ranks."""
    collective: str
    """One of COLLECTIVES; "send" for a message."""
    step: int
    size_bytes: int
    """Payload of one rank, in bytes; for an all_to_all, the largest."""
    ranks: tuple[int, ...]
    """Global ranks, in the order of the group."""
    ops: tuple[Op, ...]
    """Op of each of `ranks`."""
    slots: int = 1
    """Number of collectives of the group that run concurrently."""

    @property
    def start_s(self) -> float:
        """Arrival of the last rank, on aligned clocks, in seconds."""
        return max(op.start_s for op in self.ops)

    @property
    def end_s(self) -> float:
        """End on the last rank, on aligned clocks, in seconds; arrival for messages."""
        if self.collective == "send":
            # The sender may have looked much later.
            return self.ops[1].end_s
        return max(op.end_s for op in self.ops)

    def causes(self) -> list[tuple[int, int]]:
        """Index pairs (i, j) into `ranks` such that j cannot end before i has started."""
        n = len(self.ranks)
        if self.collective == "send":
            return [(0, 1)]
        if self.collective == "broadcast":
            # Others may come after the source is done, which need not wait for them.
            source = self.ops[0].peer
            first = [self.ranks.index(source)] if source in self.ranks else []
        else:
            first = list(range(n))
        return [(i, j) for i in first for j in range(n) if i != j]


def match(trace: Trace) -> list[Match]:
    """Match collectives by (group, seq) and messages by their order; sorted by group and number.

    Collectives at either end of the trace that some rank did not record are omitted.

    Raises:
        TraceError: Ranks disagree on what a collective is or on its bytes, a rank has it twice, or a rank
            lacks one between two that it has.
    """
    groups = _groups(trace)
    found: dict[tuple[str, int], dict[int, Op]] = defaultdict(dict)
    for rank, recorded in enumerate(trace.ranks):
        for op in recorded.ops:
            if op.kind != "communication" or op.seq < 0 or op.collective in _NO_SEQ:
                continue
            if op.group not in groups:
                raise TraceError(
                    f"rank {rank} communicates in group {op.group!r}, which no header names; expected one of "
                    f"{', '.join(map(repr, groups))}"
                )
            if rank in found[op.group, op.seq]:
                raise TraceError(
                    f"rank {rank} has collective {op.seq} of group {op.group!r} twice; number the collectives of "
                    "a group one after the other"
                )
            found[op.group, op.seq][rank] = op
    ends = _ends(found)
    matches = []
    for (group, seq), by_rank in sorted(found.items()):
        members = groups[group]
        missing = [rank for rank in members if rank not in by_rank]
        if not missing:
            # A thread of the job carries out one after the other.
            alone = any(op.algorithm for op in by_rank.values())
            slots = 1 if alone else min(trace.ranks[rank].header.comm_slots for rank in members)
            matches.append(_agree(group, seq, members, by_rank, max(slots, 1)))
        for rank in missing:
            first, last = ends.get((group, rank), (seq + 1, seq - 1))
            if first < seq < last:
                raise TraceError(
                    f"rank {rank} lacks collective {seq} of group {group!r}, which rank {min(by_rank)} has; "
                    "the ranks called different collectives, or the trace lost one: record again"
                )
    return matches + _messages(trace)


def causes(trace: Trace, matches: Sequence[Match]) -> Iterator[tuple[int, float, int, float]]:
    """(rank, time, other rank, time) of causally ordered events: starts before ends, and probes."""
    for one in matches:
        for i, j in one.causes():
            yield one.ranks[i], one.ops[i].start_s, one.ranks[j], one.ops[j].end_s
    for recorded in trace.ranks:
        rank = recorded.header.rank
        for probe in recorded.header.probes:
            if 0 <= probe.peer < trace.world_size:
                yield rank, probe.sent_s, probe.peer, probe.peer_s
                yield probe.peer, probe.peer_s, rank, probe.received_s


def slot_starts(matches: Sequence[Match], slots: int) -> list[float]:
    """Start of each of a group's collectives in its slot on the last rank, on aligned clocks, in seconds.

    A rank records when it hands a collective over, not always when a slot takes it. Slots take collectives
    in order.

    Args:
        matches: Matches of one group, by number.
        slots: Number of concurrent collectives.
    """
    free = [-float("inf")] * max(slots, 1)
    starts = []
    for one in matches:
        start = min(max(one.start_s, heapq.heappop(free)), one.end_s)
        starts.append(start)
        heapq.heappush(free, one.end_s)
    return starts


def transfer_starts(matches: Sequence[Match]) -> list[float]:
    """Time at which each collective and message has all its ranks and a slot, on aligned clocks, in seconds."""
    groups: dict[str, list[int]] = defaultdict(list)
    starts = [one.start_s for one in matches]
    for place, one in enumerate(matches):
        if one.collective != "send":
            groups[one.group].append(place)
    for places in groups.values():
        own = [matches[place] for place in places]
        for place, start in zip(places, slot_starts(own, own[0].slots), strict=True):
            starts[place] = start
    return starts


def _groups(trace: Trace) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    for rank in trace.ranks:
        for name, members in rank.header.groups.items():
            ranks = tuple(members)
            if groups.setdefault(name, ranks) != ranks:
                raise TraceError(
                    f"group {name!r} is of ranks {list(groups[name])} on one rank and of {members} on rank "
                    f"{rank.header.rank}; give each group a name of its own"
                )
            if outside := [r for r in ranks if not 0 <= r < trace.world_size]:
                raise TraceError(f"group {name!r} has rank {outside[0]} in a run of {trace.world_size} ranks")
    return groups


def _ends(found: dict[tuple[str, int], dict[int, Op]]) -> dict[tuple[str, int], tuple[int, int]]:
    """First and last number of each (group, rank)."""
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for (group, seq), by_rank in found.items():
        for rank in by_rank:
            first, last = ends.get((group, rank), (seq, seq))
            ends[group, rank] = min(first, seq), max(last, seq)
    return ends


def _agree(group: str, seq: int, members: tuple[int, ...], by_rank: dict[int, Op], slots: int) -> Match:
    first = by_rank[members[0]]
    for rank in members[1:]:
        op = by_rank[rank]
        same_size = first.size_bytes == op.size_bytes or first.collective in _OWN_SIZE
        if first.collective == op.collective and same_size:
            continue
        raise TraceError(
            f"collective {seq} of group {group!r} is {_what(first)} on rank {members[0]} and {_what(op)} on rank "
            f"{rank}; all ranks must call the same collectives in the same order: check the code that branches "
            "by rank"
        )
    ops = tuple(by_rank[rank] for rank in members)
    size = max(op.size_bytes for op in ops)
    return Match(group, seq, first.collective, first.step, size, members, ops, slots)


def _what(op: Op) -> str:
    return f"{op.collective or 'no known collective'} of {op.size_bytes} bytes"


def _messages(trace: Trace) -> list[Match]:
    """Messages between two ranks with one tag arrive in the order in which they were sent."""
    sent, received = sent_and_received(trace)
    matches = []
    for key, ops in sorted(sent.items()):
        group, source, target, tag = key
        # A surplus at the end was under way when the trace ended.
        for number, (out, into) in enumerate(zip(ops, received.get(key, []), strict=False)):
            if out.size_bytes != into.size_bytes:
                raise TraceError(
                    f"message {number} with tag {tag} has {out.size_bytes} bytes on rank {source} and "
                    f"{into.size_bytes} bytes on rank {target}; the trace lost one: record again"
                )
            pair = (source, target)
            matches.append(Match(group, number, "send", out.step, out.size_bytes, pair, (out, into)))
    return matches
