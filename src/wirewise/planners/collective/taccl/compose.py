"""Schedules as programs."""

from __future__ import annotations

from wirewise.collective import Collective, Program, Transfer
from wirewise.planners.collective.taccl.instance import Instance
from wirewise.planners.collective.taccl.timing import Message, Schedule

__all__ = ["program"]


def program(
    instance: Instance,
    found: Schedule,
    collective: Collective,
    *,
    root: int = 0,
    members: tuple[int, ...] = (),
) -> Program:
    """The program that does what a schedule says.

    Messages enter steps in the order of their starts. A step ends before a message that takes what the step
    brings, that is between two ranks which exchange a message in it already, or that uses a port or link a second
    time; so steps say in which order the schedule wants each port and link used.

    Args:
        instance: Chunks and topology of the schedule.
        found: The schedule. Sums go up its trees, against the direction of its pairs.
        collective: Which one the program carries out.
        root: Rank of a rooted collective.
        members: Ranks of the group; none: all.
    """
    steps = _Steps(instance)
    transfers = []
    sums = found.upwards
    kinds = [instance.kind(m.pair, m.chunks) for m in found.messages]
    for _, _, message in sorted(zip(found.starts, kinds, found.messages, strict=True)):
        step = steps.of(message, sums)
        s, t = message.pair[::-1] if sums else message.pair
        transfers += [Transfer(chunk, s, t, step, sums) for chunk in message.chunks]
    return Program(
        name="taccl",
        collective=collective,
        ranks=instance.topology.ranks,
        chunks=len(instance.demands),
        transfers=tuple(sorted(transfers, key=lambda t: (t.step, t.source, t.target, t.chunk))),
        root=root,
        members=members,
    )


class _Steps:
    """The step that each message enters."""

    def __init__(self, instance: Instance) -> None:
        self._top, self._step = instance.topology, 0
        self._written: set[tuple[int, int]] = set()
        self._used: set[object] = set()

    def of(self, message: Message, upwards: bool) -> int:
        """The current step, or a new one."""
        source, target = message.pair[::-1] if upwards else message.pair
        reads = {(source, chunk) for chunk in message.chunks}
        writes = {(target, chunk) for chunk in message.chunks}
        uses: set[object] = {message.pair, *self._top.ports_of[message.pair]}
        if (reads | writes) & self._written or uses & self._used:
            self._step += 1
            self._written, self._used = set(), set()
        self._written |= writes
        self._used |= uses
        return self._step
