"""Agreement by a shared store on which rank failed first, or where ranks with different calls are deadlocked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Failures", "first_failed"]

_GRACE_S = 3.0
_SOME_GAVE_UP = "wirewise/gave-up"


class Failures:
    """Reports of ranks that timed out.

    Args:
        rank: Index of this rank.
        peers: All other ranks.
        store: Torch store shared by all ranks. None if reports cannot be shared.
    """

    def __init__(self, rank: int, peers: Iterable[int], store: Any) -> None:
        self._rank, self._peers, self._store = rank, tuple(peers), store
        self.places: dict[int, str] = {}
        """Names of the exchanges in which peers that reported waited."""

    def has_remote_timeout(self) -> bool:
        """Whether another rank has reported a timeout."""
        try:
            if self._store is None or not self._store.check([_SOME_GAVE_UP]):
                return False
            return any(self._store.check([_key(rank)]) for rank in self._peers)
        except RuntimeError:
            # The store ended with rank 0, which may have done its part.
            return False

    def first(self, peer: int | None, exchange: str = "") -> int | None:
        """Report which rank this one waited for, read the reports of others, and infer which rank failed first.

        Args:
            peer: Peer that this rank waited for. None if it waited for all.
            exchange: Name of the exchange in which it waited.
        """
        if self._store is None:
            return peer
        reports: dict[int, int | None] = {}
        deadline = time.monotonic() + _GRACE_S
        try:
            self._store.set(_key(self._rank), f"{-1 if peer is None else peer} {exchange}")
            self._store.set(_SOME_GAVE_UP, "1")
            while time.monotonic() < deadline and len(reports) < len(self._peers):
                self._listen(reports)
                time.sleep(0.1)
        except (RuntimeError, ValueError):
            # The store went with rank 0: it died, or it had reported and ended.
            if not reports:
                return peer if peer is not None else 0
        return first_failed(peer, reports, self._peers)

    def _listen(self, reports: dict[int, int | None]) -> None:
        for rank in self._peers:
            if rank not in reports and self._store.check([_key(rank)]):
                peer, _, place = self._store.get(_key(rank)).decode(errors="replace").partition(" ")
                reports[rank] = int(peer) if int(peer) >= 0 else None
                self.places[rank] = place


def first_failed(
    waited_for: int | None, reports: Mapping[int, int | None], peers: Iterable[int]
) -> int | None:
    """Infer the rank that failed first; falls back to the awaited peer, or None.

    A rank that reports is alive, so a rank without a report is sought: the end of the wait-for chain, or a rank that
    others name, or the only one without a report (in a sum, nobody knows whose part is missing).

    Args:
        waited_for: Peer that this rank waited for. None if it waited for all.
        reports: Rank that each timed-out peer waited for, or None.
        peers: All other ranks.
    """
    suspect = waited_for
    seen: set[int] = set()
    while suspect is not None and suspect in reports and suspect not in seen:
        seen.add(suspect)
        suspect = reports[suspect]
    silent = [rank for rank in peers if rank not in reports]
    named = [rank for rank in reports.values() if rank in silent]
    for rank in [suspect, *named]:
        if rank in silent:
            return rank
    return silent[0] if len(silent) == 1 else waited_for


def _key(rank: int) -> str:
    return f"wirewise/blame/{rank}"
