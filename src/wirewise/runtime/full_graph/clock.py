"""Wall-clock time of the phases of an epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["PHASES", "PhaseClock"]

PHASES = ("pack", "wire", "unpack", "central", "marginal", "reduce", "plan", "other")
"""Names of phases. pack and unpack: codec; wire: waiting with nothing to do; central: computing while bytes are on the
wire;
marginal: all other computing of the model; reduce: waiting for the gradient all-reduce; plan: choosing bits."""


class PhaseClock:
    """Accumulator of seconds by phase; phases nest, and an inner phase is not counted in the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        self.push(name)
        try:
            yield
        finally:
            self.pop()

    def push(self, name: str) -> None:
        """Enter a phase (use `phase` unless entry and exit lie in different functions)."""
        self._charge()
        self._stack.append(name)

    def pop(self) -> None:
        """Leave the innermost phase."""
        self._charge()
        self._stack.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._stack:
            name = self._stack[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Seconds since the last call, by phase."""
        taken, self.seconds = self.seconds, {}
        return taken
