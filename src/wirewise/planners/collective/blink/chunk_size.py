"""How large the chunks of a pipeline should be, found while it runs."""

from __future__ import annotations

from wirewise.errors import InputError

__all__ = ["ChunkSize"]


class ChunkSize:
    """Multiplicative increase, additive decrease (Blink, Wang et al., MLSys 2020, on automatic chunk sizes).

    The size doubles as long as that makes the collective quicker; once it is slower, the size goes down from there in
    equal steps as long as that helps. Ask for `size_bytes`, run, `report`; after `done` the size is the best one.
    Above the paper: where the first doubling is slower already, or too large, sizes are halved instead.

    Args:
        size_bytes: First size to try.
        most_bytes: No larger size is tried.
        least_bytes: No smaller size is tried.
        steps: Parts of the last doubling to go down in.
        gain: Smallest relative gain that counts, so that noise does not.

    Raises:
        InputError: Sizes that are not in order.
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
        """Tell how quick the collective was with `size_bytes`, and move on to the next size.

        Raises:
            InputError: A rate that is not above 0.
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
