"""Steps of one rank that access the same chunk without an order between them, found with vector clocks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wirewise.collective.exporters.msccl.dependences import accessed_chunks
from wirewise.collective.exporters.msccl.model import KINDS, Algorithm, Place, Step, physical

__all__ = ["find_races"]

_Clock = npt.NDArray[Any]
"""Steps of each thread block of all ranks that are over for certain."""
_At = tuple[int, int]
"""Index of the thread block among those of all ranks, and step."""


class _Walk:
    """Runs the steps in one possible order; what it finds holds for every order.

    The order between two steps follows only from thread blocks, waits and messages, never from how full a
    connection is.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.blocks = [(r, n) for r, gpu in enumerate(algorithm.gpus) for n in range(len(gpu.blocks))]
        self.number = {at: i for i, at in enumerate(self.blocks)}
        self.clocks: list[_Clock] = [np.zeros(len(self.blocks), np.int16) for _ in self.blocks]
        self.awaited: dict[_At, _Clock] = {}
        self.messages: dict[tuple[int, int, int], deque[_Clock]] = defaultdict(deque)
        self.writers: dict[tuple[int, Place], _At] = {}
        self.readers: dict[tuple[int, Place], list[_At]] = defaultdict(list)

    def run(self) -> Iterator[str]:
        done = [0] * len(self.blocks)
        moved = True
        while moved:
            moved = False
            for i, (rank, n) in enumerate(self.blocks):
                steps = self.algorithm.gpus[rank].blocks[n].steps
                while done[i] < len(steps) and self._ready(i, steps[done[i]]):
                    yield from self._take((i, done[i]), steps[done[i]])
                    done[i] += 1
                    moved = True

    def _ready(self, i: int, step: Step) -> bool:
        rank, n = self.blocks[i]
        block = self.algorithm.gpus[rank].blocks[n]
        if step.waits_for is not None:
            other, index = step.waits_for
            if (self.number[rank, other], index) not in self.awaited:
                return False
        return not KINDS[step.kind].receives or bool(self.messages[block.receive, rank, block.channel])

    def _take(self, at: _At, step: Step) -> Iterator[str]:
        rank, n = self.blocks[at[0]]
        block, kind = self.algorithm.gpus[rank].blocks[n], KINDS[step.kind]
        clock = self.clocks[at[0]].copy()
        if step.waits_for is not None:
            other, index = step.waits_for
            np.maximum(clock, self.awaited[self.number[rank, other], index], out=clock)
        if kind.receives:
            np.maximum(clock, self.messages[block.receive, rank, block.channel].popleft(), out=clock)
        yield from self._use(at, step, clock)
        clock[at[0]] = at[1] + 1
        self.clocks[at[0]] = clock
        if step.awaited:
            self.awaited[at] = clock
        if kind.sends:
            self.messages[rank, block.send, block.channel].append(clock)

    def _use(self, at: _At, step: Step, clock: _Clock) -> Iterator[str]:
        rank = self.blocks[at[0]][0]
        for place, writes in accessed_chunks(step):
            cell = rank, physical(self.algorithm, rank, place)
            earlier = [self.writers[cell]] if cell in self.writers else []
            if writes:
                earlier += self.readers[cell]
            for other in earlier:
                if other[0] != at[0] and clock[other[0]] <= other[1]:
                    yield self._said(at, other, place, writes)
            if writes:
                self.writers[cell], self.readers[cell] = at, []
            else:
                self.readers[cell].append(at)

    def _said(self, at: _At, other: _At, place: Place, writes: bool) -> str:
        rank = self.blocks[at[0]][0]
        return (
            f"rank {rank}: thread block {self.blocks[at[0]][1]}, step {at[1]} {'writes' if writes else 'reads'} "
            f"{place.buffer}[{place.offset}], which thread block {self.blocks[other[0]][1]}, step {other[1]} uses "
            "too, and neither waits for the other"
        )


def find_races(algorithm: Algorithm) -> Iterator[str]:
    """Find unordered pairs of steps of which one writes what the other accesses, as sentences."""
    return _Walk(algorithm).run()
