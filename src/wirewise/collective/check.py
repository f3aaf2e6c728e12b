"""Prove that a program implements its collective, by running it on sets of contributors instead of numbers.

The state of a chunk at a rank is the set of ranks whose values are summed in it. A program is correct if every
receiver ends with the set of all contributors, without double counting and without depending on the order of two
writes. This then holds for all inputs and sizes, however the program was made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from wirewise.collective.fifo import Worker, deadlocked_messages
from wirewise.collective.program import Program, Transfer
from wirewise.collective.regular import RegularProgram
from wirewise.errors import ProgramError

__all__ = ["Fault", "HeldPart", "check", "check_regular", "faults", "final_state"]


class Fault(NamedTuple):
    """Fault of a program."""

    kind: Literal["nothing to send", "added twice", "race", "incomplete", "deadlock"]
    message: str
    transfer: Transfer | None = None
    """Faulty transfer. None if the fault is in the final state."""


class HeldPart(NamedTuple):
    """Part of a chunk that a rank holds."""

    ranks: int
    """Bit mask of the ranks whose values it includes."""
    fault: Fault | None = None
    """First fault that made it wrong."""


State = dict[tuple[int, int], HeldPart]
"""Held values, by rank and chunk."""


def final_state(program: Program) -> tuple[State, list[Fault]]:
    """State of each rank after the last step, and transfers that had nothing to send."""
    chunks = range(program.chunks)
    state = {(r, chunk): HeldPart(1 << r) for chunk in chunks for r in program.starts_at(chunk)}
    return state, _run(state, program)


def _run(state: State, program: Program) -> list[Fault]:
    found: list[Fault] = []
    by_step = sorted(program.transfers, key=lambda t: t.step)
    for _, group in itertools.groupby(by_step, key=lambda t: t.step):
        found += _take_step(state, list(group))
    return found


def faults(
    program: Program, fifo: int | None = 1, workers: Sequence[Worker] | None = None
) -> Iterator[Fault]:
    """Find the faults that affect the final state, each once.

    Args:
        program: Program to check.
        fifo: Messages that a channel between two ranks holds before its sender blocks. Defaults to no limit.
        workers: Orders in which ranks run their sends and receives, as in `fifo`. Defaults to by segment and step,
            which never deadlocks, whatever the channel capacity.
    """
    state, found = final_state(program)
    wrong = dict.fromkeys([*found, *_at_the_end(program, state, range(program.chunks))])
    yield from wrong
    if workers is not None and not wrong:
        room = 1 + len(program.transfers) * program.segments if fifo is None else fifo
        for line in deadlocked_messages(program, workers, room):
            yield Fault("deadlock", line)


def check(program: Program, fifo: int | None = 1, workers: Sequence[Worker] | None = None) -> None:
    """Raise if the program does not implement its collective; arguments as in `faults`.

    Raises:
        ProgramError: The message names the first fault.
    """
    for fault in faults(program, fifo, workers):
        raise ProgramError(f"program {program.name!r} ({program.collective}): {fault.kind}: {fault.message}")


def check_regular(program: RegularProgram) -> None:
    """Raise if a regular program does not implement its collective.

    Only the chunks at the ranks of one period are checked. By induction over the steps, all other ranks hold the
    same, rotated: this is so at the start, and a step does at each rank what it does one period before.

    Raises:
        ProgramError: The message names the first fault, of a rank of the first period.
    """
    state, chunks = _Turned(program), range(program.turn_chunks)
    for chunk in chunks:
        for rank in program.rule.starts_at(chunk):
            state[state.own(rank, chunk)] = HeldPart(1 << rank % program.period)
    for fault in [*_run(state, program.by_target()), *_at_the_end(program.rule, state, chunks)]:
        raise ProgramError(
            f"regular program {program.name!r} ({program.rule.collective}): {fault.kind}: {fault.message}"
        )


class _Turned(State):
    """State of ranks of the first period, from which `get` derives that of any other."""

    def __init__(self, program: RegularProgram) -> None:
        super().__init__()
        self._program = program

    def own(self, rank: int, chunk: int) -> tuple[int, int]:
        """Cell of the class that is of a rank of the first period."""
        turns, place = divmod(rank, self._program.period)
        return place, (chunk - turns * self._program.turn_chunks) % self._program.rule.chunks

    def get(self, cell: tuple[int, int], default: Any = None) -> Any:
        """Content of a cell; see `dict.get`."""
        held = super().get(self.own(*cell))
        by, ranks = cell[0] - cell[0] % self._program.period, self._program.ranks
        if held is None:
            return default
        turned = held.ranks << by
        return held._replace(ranks=turned >> ranks | turned & (1 << ranks) - 1)


def _at_the_end(program: Program, state: State, chunks: Iterable[int]) -> Iterator[Fault]:
    for chunk in chunks:
        whole = sum(1 << r for r in program.starts_at(chunk))
        for rank in program.ends_at(chunk):
            held = state.get((rank, chunk), HeldPart(0))
            if held.fault:
                yield held.fault
            elif held.ranks != whole:
                message = _incomplete(rank, chunk, whole & ~held.ranks, held.ranks & ~whole)
                yield Fault("incomplete", message)


def _take_step(state: State, transfers: Sequence[Transfer]) -> Iterator[Fault]:
    sent = [(t, state.get((t.source, t.chunk))) for t in transfers]
    before = dict[tuple[int, int], bool]()
    for t, value in sent:
        cell = (t.target, t.chunk)
        if value is None:
            yield Fault("nothing to send", f"{_name(t)}, and rank {t.source} does not hold it yet", t)
        elif t.reduces and before.get(cell, True):
            state[cell] = _sum(t, state.get(cell, HeldPart(0)), value)
        elif cell in before:
            state[cell] = _second_copy(t, state[cell], value, before[cell])
        else:
            state[cell] = value
        before.setdefault(cell, t.reduces)


def _sum(t: Transfer, own: HeldPart, value: HeldPart) -> HeldPart:
    fault = own.fault or value.fault
    if own.ranks & value.ranks and not fault:
        twice = ", ".join(map(str, _ranks(own.ranks & value.ranks)))
        fault = Fault("added twice", f"{_name(t)}, where the values of ranks {twice} are in already", t)
    return HeldPart(own.ranks | value.ranks, fault)


def _second_copy(t: Transfer, own: HeldPart, value: HeldPart, own_was_added: bool) -> HeldPart:
    """A copy after another write of the step, or a sum after a copy: harmless where both bring the same."""
    fault = own.fault or value.fault
    if not fault and (t.reduces or own_was_added or own.ranks != value.ranks):
        message = f"{_name(t)}, and another transfer of the step writes something else there"
        fault = Fault("race", message, t)
    return HeldPart(value.ranks, fault)


def _name(t: Transfer) -> str:
    how = "is added at" if t.reduces else "goes to"
    return f"in step {t.step} chunk {t.chunk} of rank {t.source} {how} rank {t.target}"


def _incomplete(rank: int, chunk: int, missing: int, foreign: int) -> str:
    parts = [f"rank {rank} ends"]
    if missing:
        parts.append(f"without the values of ranks {', '.join(map(str, _ranks(missing)))}")
    if foreign:
        parts.append(f"with those of ranks {', '.join(map(str, _ranks(foreign)))}, which have no part in it,")
    return " ".join([*parts, f"in chunk {chunk}"])


def _ranks(bits: int) -> Iterable[int]:
    return (r for r in range(bits.bit_length()) if bits >> r & 1)
