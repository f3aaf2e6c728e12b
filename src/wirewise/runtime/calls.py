"""Detection of deadlocks within seconds: calls of ranks that differ, or a rank that left with an error."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["CallLog"]

_WAITS_S = 2.0
"""Seconds of waiting in one call after which a rank says where it is; most waits end before."""
_LEFT_S = 3.0
"""Seconds that a rank has to come back after an error; a script that catches one goes on at once, or not at all."""
_LOOK_AT = (
    "Look at the log of rank {}; where a script catches errors, all ranks have to leave the step together"
)
_SAME_ORDER = (
    "Expected the same calls in the same order on all ranks, also of the script's own collectives; an error that a "
    "script catches, caught on all ranks"
)
_KEPT = 64
"""Calls that are compared; ranks are one or two apart, as each waits for the others in most calls."""
_LONGEST = 300


class _Call(NamedTuple):
    number: int
    chain: int
    """Checksum of the names of all calls so far, with this one."""
    what: str


class CallLog:
    """Log of blocking calls, which all ranks make in the same order, from one thread.

    A rank that waits long publishes its latest calls. Ranks that are merely slow have equal logs as far as both have
    got, however far apart they are; ranks whose logs differ are deadlocked.

    Args:
        rank: Index of this rank.
        peers: All other ranks.
        store: A torch store that all ranks share.
        name: Name of this kind of calls, the same on all ranks.
    """

    def __init__(self, rank: int, peers: Iterable[int], store: Any, name: str) -> None:
        self._rank, self._peers, self._store = rank, tuple(peers), store
        # Of several on one store each rank makes them in the same order.
        self._name = f"{name}-{store.add(f'wirewise/calls/{name}/{rank}', 1)}"
        self._calls = deque[_Call](maxlen=_KEPT)
        self._count = self._chain = 0
        self._published = -1
        self._left = False
        self._in_script = ""
        """Collective of the script's own in which this rank is known to wait."""
        self._seen_s: dict[int, float] = {}
        """Time at which the error of a peer was first seen, since this call began."""

    def note(self, label: str) -> None:
        """Record the start of a call.

        Args:
            label: Name of the call, the same on all ranks.
        """
        self._count += 1
        self._chain = zlib.crc32(label.encode(), self._chain)
        self._calls.append(_Call(self._count, self._chain, label))
        if self._left:
            self._left = False
            self._set("left", "")
        if self._seen_s:
            self._seen_s = {}
        self.end_script_call()

    def leave(self, error: BaseException, where: str) -> None:
        """Publish that this rank left the common calls with an error; a later call withdraws it.

        Args:
            error: Exception that was raised.
            where: Name of the call that raised it.
        """
        self._left = True
        self._set("left", f"{where} with {type(error).__name__}: {error}"[:_LONGEST])

    def fault(self, waits_s: float) -> str:
        """Explain why the latest call is deadlocked; "" if it is not known to be.

        Args:
            waits_s: Time that the call has been blocked, in seconds.
        """
        if waits_s < _WAITS_S or not self._calls:
            return ""
        try:
            if self._published != self._count:
                self._publish()
            return next((text for peer in self._peers if (text := self._fault_of(peer))), "")
        except (RuntimeError, ValueError):
            # The store ended with rank 0, which closes its connections too.
            return ""

    def explain_script_deadlock(self, label: str, waits_s: float) -> str:
        """Explain why a collective of the script itself is deadlocked; "" if it is not known to be.

        Args:
            label: Name of the collective.
            waits_s: Time that it has been blocked, in seconds.
        """
        if waits_s < _WAITS_S:
            return ""
        try:
            if not self._in_script:
                self._in_script, self._seen_s = label, {}
                self._set("script", f"{self._count} {label}")
            return next((text for peer in self._peers if (text := self._absence_of(peer))), "")
        except (RuntimeError, ValueError):
            return ""

    def end_script_call(self) -> None:
        """Record that none of the script's own collectives is in flight, not even a failed one."""
        if self._in_script:
            self._in_script, self._seen_s = "", {}
            self._set("script", "")

    def _absence_of(self, peer: int) -> str:
        """Why a peer does not come to the script's collective, once that has lasted."""
        own = f"rank {self._rank} waited in {self._in_script}"
        theirs = self._get("waits", peer).splitlines()
        number, _, call = theirs[-1].split(" ", 2) if theirs else ("0", "", "")
        if left := "" if self._left else self._get("left", peer):
            return self._lasting(peer, f"{own}, and rank {peer} left {left}. {_LOOK_AT.format(peer)}")
        if int(number) > self._count and not self._get("script", peer):
            return self._lasting(peer, f"{own}, and rank {peer} in {call}. {_SAME_ORDER}")
        self._seen_s.pop(peer, None)
        return ""

    def _lasting(self, peer: int, fault: str) -> str:
        """The fault of a peer, once it has lasted."""
        lasts_s = time.monotonic() - self._seen_s.setdefault(peer, time.monotonic())
        return fault if lasts_s > _LEFT_S else ""

    def _fault_of(self, peer: int) -> str:
        own = self._calls[-1].what
        if left := self._get("left", peer):
            return self._lasting(
                peer,
                f"rank {self._rank} waited in {own}, and rank {peer} left {left}. {_LOOK_AT.format(peer)}",
            )
        count, _, script = self._get("script", peer).partition(" ")
        if script and int(count) < self._count:
            return self._lasting(
                peer, f"rank {self._rank} waited in {own}, and rank {peer} in {script}. {_SAME_ORDER}"
            )
        self._seen_s.pop(peer, None)
        theirs = [line.split(" ", 2) for line in self._get("waits", peer).splitlines()]
        chains = {int(number): int(chain) for number, chain, _ in theirs}
        if not any(chains.get(call.number, call.chain) != call.chain for call in self._calls):
            return ""
        return (
            f"rank {self._rank} waited in {own}, and rank {peer} in {theirs[-1][2]}: all of them live, but are not in "
            "the same exchange. Expected the same calls in the same order on all ranks: as many forward and backward "
            "passes and evaluations, also on a rank without training nodes; layers that are left out and line searches "
            "decided by numbers that are equal on all ranks; an error that a script catches, caught on all ranks"
        )

    def _publish(self) -> None:
        self._set("waits", "\n".join(f"{call.number} {call.chain} {call.what}" for call in self._calls))
        self._published = self._count

    def _set(self, kind: str, text: str) -> None:
        try:
            self._store.set(self._key(kind, self._rank), text)
        except (RuntimeError, ValueError):
            # The store ended with rank 0.
            pass

    def _get(self, kind: str, peer: int) -> str:
        key = self._key(kind, peer)
        return self._store.get(key).decode(errors="replace") if self._store.check([key]) else ""

    def _key(self, kind: str, rank: int) -> str:
        return f"wirewise/calls/{self._name}/{kind}/{rank}"
