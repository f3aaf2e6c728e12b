"""Proof that a program does what its collective asks for, by running it with sets instead of numbers.

What a rank holds of a chunk is the set of ranks whose values are summed in it. A program is right if every
receiver ends with the set of all contributors and no sum ever takes a value twice: this holds for all inputs and
all sizes. The walk is independent of how the program was made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from wirewise.collective.fifo import stuck
from wirewise.collective.program import Program, Transfer
from wirewise.errors import ProgramError

__all__ = ["Fault", "check", "faults", "final_state", "initial_state"]

State = dict[tuple[int, int], int]
"""By rank and chunk: which ranks' values are in it, one bit each."""


class Fault(NamedTuple):
    """One thing that is wrong with a program."""

    kind: Literal["nothing to send", "added twice", "race", "incomplete", "deadlock"]
    message: str
    transfer: Transfer | None = None
    """Where; None: at the end."""


def initial_state(program: Program) -> State:
    """What each rank holds before the first step."""
    return {(r, chunk): 1 << r for chunk in range(program.chunks) for r in program.starts_at(chunk)}


def final_state(program: Program) -> tuple[State, list[Fault]]:
    """What each rank holds after the last step, and the faults on the way."""
    state, found = initial_state(program), list[Fault]()
    by_step = sorted(program.transfers, key=lambda t: t.step)
    for _, group in itertools.groupby(by_step, key=lambda t: t.step):
        _take_step(state, list(group), found)
    return state, found


def faults(program: Program, fifo: int | None = 1) -> Iterator[Fault]:
    """Everything that is wrong, from the first step to the last.

    Args:
        program: Which.
        fifo: Messages that a channel between two ranks holds before its sender must wait; None: no limit.
    """
    state, found = final_state(program)
    yield from found
    for chunk in range(program.chunks):
        whole = sum(1 << r for r in program.starts_at(chunk))
        for rank in program.ends_at(chunk):
            held = state.get((rank, chunk), 0)
            if held != whole:
                yield Fault("incomplete", _incomplete(rank, chunk, whole & ~held, held & ~whole))
    if fifo is not None and not found:
        for line in stuck(program, fifo):
            yield Fault("deadlock", line)


def check(program: Program, fifo: int | None = 1) -> None:
    """Raise if the program does not do what its collective asks for; arguments as in `faults`.

    Raises:
        ProgramError: The message names the first fault.
    """
    for fault in faults(program, fifo):
        raise ProgramError(f"program {program.name!r} ({program.collective}): {fault.kind}: {fault.message}")


def _take_step(state: State, transfers: Sequence[Transfer], found: list[Fault]) -> None:
    sent = [(t, state.get((t.source, t.chunk), 0)) for t in transfers]
    written: dict[tuple[int, int], bool] = {}
    for t, value in sent:
        if not value:
            found.append(Fault("nothing to send", f"{_name(t)}, and rank {t.source} does not hold it yet", t))
            continue
        cell = (t.target, t.chunk)
        if cell in written and not (t.reduces and written[cell]):
            found.append(Fault("race", f"{_name(t)}, and another transfer of the step writes it too", t))
        written[cell] = t.reduces
        held = state.get(cell, 0) if t.reduces else 0
        if held & value:
            twice = ", ".join(map(str, _ranks(held & value)))
            found.append(
                Fault("added twice", f"{_name(t)}, where the values of ranks {twice} are in already", t)
            )
        state[cell] = held | value


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
