"""Shares of one direction of an interface: none, or one alike for each flow."""

from __future__ import annotations

__all__ = ["EqualShares", "Shares"]


class Shares:
    """No shares: a flow may take whatever the interface has."""

    def begin(self, op: int, now_s: float) -> None:
        """A flow is ready."""

    def end(self, op: int, now_s: float) -> None:
        """It has passed."""

    def take(self, op: int, size_bytes: int, now_s: float) -> None:
        """A piece of a flow passes."""

    def free_s(self, op: int, size_bytes: int) -> float:
        """Before which a flow's share has no room for a piece, if no other flow begins or ends; `time.monotonic`."""
        return 0.0


class EqualShares(Shares):
    """Each of n ready flows has 1 / n of the rate, and what it leaves of that is lost.

    This is the degree split of Luo, Bao, Wu, INFOCOM 2022. A piece goes at the end of the time that it takes at the
    flow's share, so that a flow ends when its last byte would.

    Args:
        rate_bytes_per_s: Bytes per second of the interface.
        saved_bytes: Most of its share that a late flow makes up for.
    """

    def __init__(self, rate_bytes_per_s: float, saved_bytes: int) -> None:
        self._rate, self._saved_bytes = rate_bytes_per_s, saved_bytes
        self._offered, self._since_s = 0.0, 0.0
        """Bytes that a flow which is always ready could have let through, and until when that is counted."""
        self._passed: dict[int, float] = {}
        """Place of each ready flow in what was offered."""

    def begin(self, op: int, now_s: float) -> None:
        """A flow is ready: the others' shares shrink."""
        self._advance(now_s)
        self._passed[op] = self._offered

    def end(self, op: int, now_s: float) -> None:
        """A flow has passed: the others' shares grow."""
        self._advance(now_s)
        del self._passed[op]

    def take(self, op: int, size_bytes: int, now_s: float) -> None:
        """A piece of a flow passes."""
        self._advance(now_s)
        self._passed[op] = max(self._passed[op], self._offered - self._saved_bytes) + size_bytes

    def free_s(self, op: int, size_bytes: int) -> float:
        """Time before which the flow has no room for a piece, as `Shares.free_s`."""
        missing = self._passed[op] + size_bytes - self._offered
        return self._since_s + missing * len(self._passed) / self._rate

    def _advance(self, now_s: float) -> None:
        if self._passed:
            self._offered += (now_s - self._since_s) * self._rate / len(self._passed)
        self._since_s = now_s
