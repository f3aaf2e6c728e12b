"""Files in the XML dialect of MSCCLang, written by hand as its users write them: one of each kind of its examples.

They use what our own exporter does not: scratch buffers for everything received, one thread block that sends and
receives, local sums of several scratch chunks, `custom` calls.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

Chunk = tuple[str, int]
"""Buffer "i", "o" or "s" and offset."""


@dataclass
class Block:
    """A thread block being written."""

    rank: int
    number: int
    send: int = -1
    recv: int = -1
    channel: int = 0
    steps: list[ET.Element] = field(default_factory=list)

    def step(
        self, kind: str, source: Chunk = ("i", 0), target: Chunk = ("o", 0), count: int = 1, after: At = None
    ) -> At:
        """Add a step that waits for `after`, a step of another block of the rank; returns its place."""
        waits = ("-1", "-1")
        if after is not None:
            block, index = after
            block.steps[index].set("hasdep", "1")
            waits = (str(block.number), str(index))
        form = {"s": len(self.steps), "type": kind, "srcbuf": source[0], "srcoff": source[1]}
        form |= {"dstbuf": target[0], "dstoff": target[1], "cnt": count}
        element = ET.Element("step", {name: str(value) for name, value in form.items()})
        element.attrib |= {"depid": waits[0], "deps": waits[1], "hasdep": "0"}
        self.steps.append(element)
        return self, len(self.steps) - 1


At = tuple[Block, int] | None


class File:
    """An algorithm being written; `chunks` are (input, output, scratch) of every rank."""

    def __init__(
        self,
        call: str,
        ranks: int,
        loop: int,
        chunks: tuple[int, int, int],
        in_place=False,
        protocol="Simple",
    ):
        self.call, self.ranks, self.loop, self.chunks = call, ranks, loop, chunks
        self.in_place, self.protocol = in_place, protocol
        self.blocks: list[list[Block]] = [[] for _ in range(ranks)]

    def block(self, rank: int, send: int = -1, recv: int = -1, channel: int = 0) -> Block:
        made = Block(rank, len(self.blocks[rank]), send, recv, channel)
        self.blocks[rank].append(made)
        return made

    def text(self) -> str:
        channels = 1 + max(block.channel for rank in self.blocks for block in rank)
        head = {"name": "by_hand", "proto": self.protocol, "nchannels": channels, "nchunksperloop": self.loop}
        head |= {
            "ngpus": self.ranks,
            "coll": self.call,
            "inplace": int(self.in_place),
            "outofplace": int(not self.in_place),
        }
        head |= {"minBytes": 0, "maxBytes": 2**31 - 1, "nthreads": 256, "redop": "sum"}
        root = ET.Element("algo", {name: str(value) for name, value in head.items()})
        names = ("i_chunks", "o_chunks", "s_chunks")
        for rank, blocks in enumerate(self.blocks):
            own = {name: str(count) for name, count in zip(names, self.chunks, strict=True)}
            gpu = ET.SubElement(root, "gpu", {"id": str(rank), **own})
            for block in blocks:
                at = {"id": block.number, "send": block.send, "recv": block.recv, "chan": block.channel}
                ET.SubElement(gpu, "tb", {name: str(value) for name, value in at.items()}).extend(block.steps)
        return ET.tostring(root, encoding="unicode")


def all_reduce_one_step(ranks: int = 4, start: str = "cpy") -> File:
    """Everybody sends everything to everybody, who adds it up; `start` puts the own input into the output."""
    made = File("allreduce", ranks, 1, (1, 1, ranks))
    for rank in range(ranks):
        received = []
        for peer in range(ranks):
            if peer != rank:
                made.block(rank, send=peer).step("s", ("i", 0))
                received.append((peer, made.block(rank, recv=peer).step("r", target=("s", peer))))
        adds = made.block(rank)
        adds.step(start, ("i", 0), ("o", 0))
        for peer, at in received:
            adds.step("re", ("s", peer), ("o", 0), after=at)
    return made


def all_reduce_all_pairs(ranks: int = 4) -> File:
    """Each rank adds up one chunk of everybody's, then sends the sum to everybody."""
    made = File("allreduce", ranks, ranks, (ranks, ranks, ranks))
    for rank in range(ranks):
        adds = made.block(rank)
        adds.step("cpy", ("i", rank), ("o", rank))
        for peer in range(ranks):
            if peer != rank:
                made.block(rank, send=peer).step("s", ("i", peer))
                adds.step(
                    "re",
                    ("s", peer),
                    ("o", rank),
                    after=made.block(rank, recv=peer).step("r", target=("s", peer)),
                )
        for peer in range(ranks):
            if peer != rank:
                made.block(rank, send=peer, channel=1).step(
                    "s", ("o", rank), after=(adds, len(adds.steps) - 1)
                )
                made.block(rank, recv=peer, channel=1).step("r", target=("o", peer))
    return made


def all_reduce_ring(ranks: int = 4) -> File:
    """Sums go around the ring once and results once more, in place, with fused steps."""
    made = File("allreduce", ranks, ranks, (ranks, ranks, 0), in_place=True, protocol="LL")
    for rank in range(ranks):
        block = made.block(rank, send=(rank + 1) % ranks, recv=(rank - 1) % ranks)
        chunk = [("i", (rank - back) % ranks) for back in range(ranks)]
        block.step("s", chunk[0])
        for back in range(1, ranks - 1):
            block.step("rrs", chunk[back], chunk[back])
        block.step("rrcs", chunk[-1], chunk[-1])
        for back in range(ranks - 2):
            block.step("rcs", chunk[back], chunk[back])
        block.step("r", target=chunk[ranks - 2])
    return made


def all_gather_recursive_doubling(ranks: int = 8, protocol: str = "LL") -> File:
    """Pairs at distance 1, 2, 4 swap all that they hold: one thread block a pair sends first, then receives."""
    made = File("allgather", ranks, ranks, (1, ranks, 0), protocol=protocol)
    for rank in range(ranks):
        own = made.block(rank)
        before: At = own.step("cpy", ("i", 0), ("o", rank))
        distance = 1
        while distance < ranks:
            peer, mine = rank ^ distance, rank // distance * distance
            theirs = peer // distance * distance
            block = made.block(rank, send=peer, recv=peer)
            block.step("s", ("o", mine), count=distance, after=before)
            before = block.step("r", target=("o", theirs), count=distance)
            distance *= 2
    return made


def all_reduce_halving_doubling(ranks: int = 4) -> File:
    """Recursive halving of sums in place, then recursive doubling of results."""
    made = File("allreduce", ranks, ranks, (ranks, ranks, 0), in_place=True, protocol="LL")
    for rank in range(ranks):
        before: At = None
        begin, size = 0, ranks
        halves = []
        while size > 1:
            size //= 2
            peer = rank ^ size
            keep, give = (begin, begin + size) if rank & size == 0 else (begin + size, begin)
            block = made.block(rank, send=peer, recv=peer)
            block.step("s", ("i", give), count=size, after=before)
            before = block.step("rrc", ("i", keep), ("i", keep), count=size)
            halves.append((peer, keep, give, size))
            begin = keep
        for peer, keep, give, size in reversed(halves):
            block = made.block(rank, send=peer, recv=peer, channel=1)
            block.step("s", ("i", keep), count=size, after=before)
            before = block.step("r", target=("i", give), count=size)
    return made


def all_reduce_hierarchical(hosts: int = 2, local: int = 2) -> File:
    """Sums inside a host, between hosts, and back inside the host; a chunk for each local rank."""
    ranks = hosts * local
    made = File("allreduce", ranks, local, (local, local, local + hosts))
    for rank in range(ranks):
        host, place = divmod(rank, local)
        adds = made.block(rank)
        last = adds.step("cpy", ("i", place), ("o", place))
        for other in range(local):
            if other != place:
                peer = host * local + other
                made.block(rank, send=peer).step("s", ("i", other))
                at = made.block(rank, recv=peer).step("r", target=("s", other))
                last = adds.step("re", ("s", other), ("o", place), after=at)
        # What goes out is a copy: the sum itself changes while it is sent.
        out = adds.step("cpy", ("o", place), ("s", place))
        for other in range(hosts):
            if other != host:
                peer = other * local + place
                made.block(rank, send=peer, channel=1).step("s", ("s", place), after=out)
                at = made.block(rank, recv=peer, channel=1).step("r", target=("s", local + other))
                last = adds.step("re", ("s", local + other), ("o", place), after=at)
        for other in range(local):
            if other != place:
                peer = host * local + other
                made.block(rank, send=peer, channel=2).step("s", ("o", place), after=last)
                made.block(rank, recv=peer, channel=2).step("r", target=("o", other))
    return made


def all_to_all_two_step(hosts: int = 2, local: int = 2) -> File:
    """What goes to another host is gathered first on the local rank of the same place there."""
    ranks = hosts * local
    made = File("alltoall", ranks, ranks, (ranks, ranks, ranks))
    for rank in range(ranks):
        host, place = divmod(rank, local)
        made.block(rank).step("cpy", ("i", rank), ("o", rank))
        gathered: dict[int, list[At]] = {other: [] for other in range(hosts) if other != host}
        for other in gathered:
            # For the rank of my place on the other host: chunks of all local ranks, in their order.
            copy = made.block(rank).step("cpy", ("i", other * local + place), ("s", other * local + place))
            gathered[other].append(copy)
        for mate in range(local):
            peer = host * local + mate
            if mate == place:
                continue
            sends, receives = made.block(rank, send=peer), made.block(rank, recv=peer)
            sends.step("s", ("i", peer))
            receives.step("r", target=("o", peer))
            for other in gathered:
                sends.step("s", ("i", other * local + mate))
                gathered[other].append(receives.step("r", target=("s", other * local + mate)))
        for other, parts in gathered.items():
            peer = other * local + place
            out, into = made.block(rank, send=peer, channel=1), made.block(rank, recv=peer, channel=1)
            for at in parts[:-1]:
                out.step("nop", ("i", -1), ("o", -1), 0, after=at)
            out.step("s", ("s", other * local), count=local, after=parts[-1])
            into.step("r", target=("o", other * local), count=local)
    return made


def all_to_next(ranks: int = 3) -> File:
    """A custom call in place, of which the file names inputs only: each rank passes its input on to the next."""
    made = File("custom", ranks, 2, (2, 0, 2), in_place=True)
    for rank in range(ranks):
        if rank < ranks - 1:
            made.block(rank, send=rank + 1).step("s", ("i", 0), count=2)
        if rank > 0:
            made.block(rank, recv=rank - 1).step("r", target=("s", 0), count=2)
    return made


RIGHT = {
    "all_reduce one step": all_reduce_one_step,
    "all_reduce all pairs": all_reduce_all_pairs,
    "all_reduce ring": all_reduce_ring,
    "all_reduce halving, doubling": all_reduce_halving_doubling,
    "all_reduce hierarchical": all_reduce_hierarchical,
    "all_gather recursive doubling": all_gather_recursive_doubling,
    "all_to_all in two steps": all_to_all_two_step,
}
"""Files whose verdict is "right"."""
