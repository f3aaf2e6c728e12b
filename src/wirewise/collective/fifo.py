"""Whether a program can get stuck where channels between ranks hold few messages.

Each rank sends to each peer, and receives from each peer, in the order of steps. A send waits for its value, then
for room in its channel. A receive waits for its message, then until the rank has sent what it overwrites and taken
in what earlier steps write there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from wirewise.collective.program import Message, Program

__all__ = ["stuck"]


class _Act(NamedTuple):
    """The sending or the receiving of a message."""

    message: int
    sends: bool


def stuck(program: Program, capacity: int) -> list[str]:
    """What waits for ever where a channel holds `capacity` messages; empty: the program always ends.

    Acts only ever enable others, so any order of running them ends in the same place: one run decides.
    """
    messages = program.messages()
    waits, wakes = _waits(messages, capacity)
    ready = deque(act for act, count in waits.items() if count == 0)
    done = 0
    while ready:
        done += 1
        for other in wakes[ready.popleft()]:
            waits[other] -= 1
            if waits[other] == 0:
                ready.append(other)
    if done == 2 * len(messages):
        return []
    left = [act for act, count in waits.items() if count > 0]
    return [_name(messages[act.message], act.sends, capacity) for act in left[:8]]


def _waits(messages: list[Message], capacity: int) -> tuple[dict[_Act, int], dict[_Act, list[_Act]]]:
    """Number of acts that each act waits for, and whom each wakes."""
    waits = {_Act(n, sends): 0 for n in range(len(messages)) for sends in (True, False)}
    wakes: dict[_Act, list[_Act]] = defaultdict(list)

    def after(first: _Act, second: _Act) -> None:
        waits[second] += 1
        wakes[first].append(second)

    channels: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        line = channels[message.source, message.target]
        if line:
            after(_Act(line[-1], True), _Act(number, True))
            after(_Act(line[-1], False), _Act(number, False))
        if len(line) >= capacity:
            after(_Act(line[-capacity], False), _Act(number, True))
        line.append(number)
        after(_Act(number, True), _Act(number, False))
    _cell_waits(messages, after)
    return waits, wakes


def _cell_waits(messages: list[Message], after: Callable[[_Act, _Act], None]) -> None:
    """Reads of a cell come before writes of the same step, writes before reads and writes of later steps."""
    cells: dict[tuple[int, int], list[tuple[int, bool, int]]] = defaultdict(list)
    for number, message in enumerate(messages):
        for t in message.transfers:
            cells[t.source, t.chunk].append((t.step, False, number))
            cells[t.target, t.chunk].append((t.step, True, number))
    for uses in cells.values():
        uses.sort()
        for place, (step, writes, number) in enumerate(uses):
            for earlier_step, wrote, other in uses[:place]:
                if wrote and earlier_step < step:
                    after(_Act(other, False), _Act(number, not writes))
                elif not wrote and writes:
                    after(_Act(other, True), _Act(number, False))


def _name(message: Message, sends: bool, capacity: int) -> str:
    m = message
    if sends:
        return (
            f"rank {m.source} waits for ever to send its message of step {m.step} to rank {m.target}, "
            f"with channels of {capacity} messages"
        )
    return f"rank {m.target} waits for ever for the message of step {m.step} from rank {m.source}"
