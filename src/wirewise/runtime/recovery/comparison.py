"""Comparison of replicas during training: all must be equal, or the first difference is named.

A nondeterministic operation, or state missed by a copy, makes replicas diverge from some step on, and averaging of
gradients hides it. All ranks therefore compare checksums of parameters, buffers and all other state that a
replacement would copy, in one message of 16 bytes each. The interval is chosen to take less than 0.3 % of the time,
by the last duration on the slowest rank.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence

import msgspec
import torch

from wirewise.errors import PeerError
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import checksum_of, digest_of

__all__ = ["ReplicaComparison", "ReplicaDifference"]

_FRACTION = 0.003
"""Fraction of the time that comparisons may take."""
_LOOKS = 3
"""Steps at whose ends attributes are looked for; most that change do so in each step."""
_MOST = 1000
"""Steps between two comparisons at most, where one is slow beside a step."""


class ReplicaComparison:
    """Comparisons made by one rank.

    Args:
        state: State of the training.
        every: Number of steps between comparisons, the same on all ranks. Defaults to an interval derived from their
            cost.
    """

    def __init__(self, state: TrainingState, every: int | None = None) -> None:
        self._state, self._every = state, every
        self._next, self._last = 1, 0
        self._last_s, self._took_s, self._look_s = time.perf_counter(), 0.0, 0.0

    def start(self, step: int) -> None:
        """Schedule a comparison at the next step, as all ranks do after a recovery."""
        self._next, self._last, self._last_s = step + 1, step, time.perf_counter()

    def due(self, step: int) -> bool:
        """Whether a comparison is due at a step."""
        return step >= self._next

    def observe(self, step: int) -> None:
        """Detect attributes that training changes, in the first steps and at comparisons."""
        if step <= _LOOKS or self.due(step):
            began_s = time.perf_counter()
            self._state.attributes.detect_changes()
            self._look_s = time.perf_counter() - began_s

    def run(self, step: int, transport: Transport, width: int = 1) -> None:
        """Compare replicas if due, by a collective call.

        Args:
            step: Step that is complete on all calling ranks.
            transport: Transport between all ranks.
            width: Number of shards of the model, which is the rank distance of its replicas.

        Raises:
            PeerError: A peer is gone.
            ReplicaDifference: Replicas differ; the message names what, and the ranks.
        """
        if not self.due(step) or transport.world_size == width:
            return
        began_s = time.perf_counter()
        step_s = max(began_s - self._last_s, 1e-9) / max(step - self._last, 1)
        sums = self._checksums()
        digest = int.from_bytes(
            hashlib.blake2b(repr(sorted(sums.items())).encode(), digest_size=7).digest(), "big"
        )
        own = torch.tensor([digest, self._interval(step_s)])
        found = [one.tolist() for one in transport.all_gather(own, "the comparison of replicas")]
        digests = [one[0] for one in found]
        if any(one != digests[place % width] for place, one in enumerate(digests)):
            raise ReplicaDifference(_told(step, _gathered(sums, transport), width))
        self._next, self._last = step + max(one[1] for one in found), step
        self._last_s = time.perf_counter()
        # The first one also makes tables of weights and warms the connections.
        self._took_s = self._last_s - began_s + self._look_s

    def _interval(self, step_s: float) -> int:
        """Steps to the next comparison, as this rank would have it."""
        if self._every is not None:
            return self._every
        return min(max(int(self._took_s / (_FRACTION * step_s)) + 1, 1), _MOST)

    def _checksums(self) -> dict[str, int]:
        """Checksum of each named part of the state."""
        sums = {f"parameter {name!r}": checksum_of(one) for name, one in self._state.parameters().items()}
        for name, tree in self._state.parts().items():
            sums[name] = int(digest_of(tree), 16)
        return sums


class ReplicaDifference(PeerError):
    """Error for replicas with different states of one step."""


def _gathered(sums: Mapping[str, int], transport: Transport) -> list[dict[str, int]]:
    found = transport.from_all(msgspec.json.encode(sums), "what differs")
    return [msgspec.json.decode(one, type=dict[str, int]) for one in found]


def _told(step: int, sums: Sequence[Mapping[str, int]], width: int) -> str:
    """Message of the first difference."""
    for name in sorted({name for one in sums for name in one}):
        differ = [place for place, one in enumerate(sums) if one.get(name) != sums[place % width].get(name)]
        if differ:
            return (
                f"{name} of step {step} is another on processes {differ} of {len(sums)} than on the first; replicas "
                "must be equal: look for state that is another on each rank, or an operation that is not "
                "deterministic, and start again from a checkpoint"
            )
    return f"the state of step {step} was another on some processes when it was compared first"
