"""Adaptive chunk size of a pipeline, tuned while it runs."""

from __future__ import annotations

from wirewise.errors import InputError

__all__ = ["ChunkSize"]


class ChunkSize:
    """Chunk size by multiplicative increase, additive decrease (Blink, Wang et al., MLSys 2020).

    The size doubles as long as the collective gets faster; once it gets slower, the size decreases in equal steps as
    long as that helps. Read `size_bytes`, run, `report`; after `done` the size is the best one. Beyond the paper: if
    the first doubling is already slower, or too large, sizes are halved instead.

    Args:
        size_bytes: Initial size, in bytes.
        most_bytes: Maximum size, in bytes.
        least_bytes: Minimum size, in bytes.
        steps: Steps by which the last doubling is undone.
        gain: Smallest relative gain that counts as faster, to reject noise.

    Raises:
        InputError: The sizes are out of order.
    """

    def __init__(
        self,
        size_bytes: int = 1 << 20,
        *,
        most_bytes: int = 1 << 30,
        least_bytes: int = 1 << 12,
        steps: int = 4,
        gain: float = 0.005,
    ) -> None:
        if not 0 < least_bytes <= size_bytes <= most_bytes:
            raise InputError(
                f"got sizes {least_bytes}, {size_bytes}, {most_bytes}; expected least <= first <= most, above 0"
            )
        self.size_bytes, self.done = size_bytes, False
        self._range, self._steps, self._gain = (least_bytes, most_bytes), steps, gain
        self._best = (0.0, size_bytes)
        self._move = "up"
        self._step = 0

    def report(self, bytes_per_s: float) -> None:
        """Report the bandwidth measured with `size_bytes`, and move on to the next size.

        Raises:
            InputError: The bandwidth is not positive.
        """
        if not bytes_per_s > 0:
            raise InputError(f"got a rate of {bytes_per_s} bytes per second; expected one above 0")
        if self.done:
            return
        better = bytes_per_s > self._best[0] * (1 + self._gain)
        first = self._best[0] == 0.0
        tried = self.size_bytes
        if better:
            self._best = (bytes_per_s, tried)
        if first and 2 * tried > self._range[1]:
            self._move = "halve"
        if better or first:
            self._go_on(tried)
        else:
            self._turn(tried)

    def _go_on(self, tried: int) -> None:
        larger = {"up": 2 * tried, "halve": tried // 2, "down": tried - self._step}[self._move]
        self._try(larger)

    def _turn(self, tried: int) -> None:
        """A size was no better: what was going up goes down, what was going down ends."""
        best = self._best[1]
        if self._move == "up" and tried == 2 * best:
            self._move = "down"
            self._step = max((tried - best) // self._steps, 1)
            self._try(tried - self._step)
        elif self._move == "down" and tried > best and tried - self._step > best:
            self._try(tried - self._step)
        elif self._move == "down" and tried > best:
            self._move = "halve"
            self._try(best // 2)
        else:
            self._end()

    def _try(self, size_bytes: int) -> None:
        if self._range[0] <= size_bytes <= self._range[1]:
            self.size_bytes = size_bytes
        else:
            self._end()

    def _end(self) -> None:
        self.size_bytes, self.done = self._best[1], True
