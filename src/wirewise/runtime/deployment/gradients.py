"""Gradient exchange overlapped with the backward pass, one set of parameters after another on the same ranks."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.runtime.transport import Transport

__all__ = ["GradientQueue", "ParameterServers", "RingAllReduce", "SharedGradients", "subgroup_transports"]

_LOOK_S = 0.25


class SharedGradients(Protocol):
    """Gradients of which ranks have partial sums until they are exchanged."""

    bytes_sent: int
    """Payload that this rank has sent so far."""

    def begin(self) -> None:
        """Zero the gradients."""
        ...

    def exchange(self) -> None:
        """Replace the partial sums by their sum; blocks until it has arrived."""
        ...


class _Flat:
    """Gradients of parameters as views of one tensor for each type."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for one in parameters:
            kinds.setdefault((one.dtype, one.device), []).append(one)
        self._parameters = list(kinds.values())
        self.flat = [
            torch.zeros(sum(p.numel() for p in own), dtype=kind, device=device)
            for (kind, device), own in kinds.items()
        ]
        self.bytes_sent = 0

    def begin(self) -> None:
        """Set gradients to zero, whatever the user has made of them."""
        for flat, own in zip(self.flat, self._parameters, strict=True):
            flat.zero_()
            for parameter, part in zip(own, flat.split([p.numel() for p in own]), strict=True):
                parameter.grad = part.view_as(parameter)


class RingAllReduce(_Flat):
    """Ring all-reduce of gradients.

    Args:
        parameters: Parameters, the same on all ranks of the group.
        group: Ranks that have partial sums.
        label: Name of the exchange for error messages.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], group: Transport, label: str) -> None:
        super().__init__(parameters)
        self._group, self._what = group, label

    def exchange(self) -> None:
        """See `SharedGradients`."""
        for flat in self.flat:
            self._group.all_reduce(flat, self._what)
            self.bytes_sent += 2 * (self._group.world_size - 1) * flat.nbytes // self._group.world_size


class ParameterServers:
    """Parameter servers: owners of parameters receive the partial sums of all others, and send back the sums.

    Args:
        parameters: Parameters by the group rank of their owner, the same on all ranks in the same order.
        group: Ranks that have partial sums.
        tag: Tag of the exchange, unique in the group; the next number is used too.
        label: Name of the exchange for error messages.
    """

    def __init__(
        self, parameters: Mapping[int, Sequence[nn.Parameter]], group: Transport, tag: int, label: str
    ) -> None:
        self._flat = {owner: _Flat(own) for owner, own in parameters.items()}
        self._group, self._tag, self._what = group, tag, label
        self.bytes_sent = 0

    def begin(self) -> None:
        """See `SharedGradients`."""
        for one in self._flat.values():
            one.begin()

    def exchange(self) -> None:
        """See `SharedGradients`."""
        group, own = self._group, self._flat.get(self._group.rank)
        others = {owner: one for owner, one in self._flat.items() if owner != group.rank}
        for number in range(max(len(one.flat) for one in self._flat.values())):
            sums = own.flat[number] if own is not None and number < len(own.flat) else None
            addends = {} if sums is None else {peer: torch.empty_like(sums) for peer in group.peers}
            theirs = {owner: one.flat[number] for owner, one in others.items() if number < len(one.flat)}
            self._carry(0, theirs, addends)
            for peer in sorted(addends):
                assert sums is not None
                sums += addends[peer]
            self._carry(1, {} if sums is None else dict.fromkeys(group.peers, sums), theirs)

    def _carry(self, way: int, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> None:
        self._group.exchange(self._what, self._tag + way, sends, receives)
        self.bytes_sent += sum(one.nbytes for one in sends.values())


class GradientQueue:
    """Thread that exchanges gradients, one set after another.

    Sets become ready in the same order on all ranks. Of those that are ready on all of them, the one with the lowest
    number goes first; where priorities differ, ranks agree on how many are ready before each exchange.

    Args:
        sets: Sets of this rank, in the order in which the backward pass completes them.
        priorities: Priority of each set, lower first. Defaults to equal.
        group: Ranks that exchange them; required if priorities differ.
    """

    def __init__(
        self, sets: Iterable[SharedGradients], priorities: Sequence[int] = (), group: Transport | None = None
    ) -> None:
        self._sets = list(sets)
        self._priorities = list(priorities) or [0] * len(self._sets)
        self._group = group if len(set(self._priorities)) > 1 else None
        self._ready, self._done = ([threading.Event() for _ in self._sets] for _ in range(2))
        self._given_up = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def bytes_sent(self) -> int:
        """Payload bytes sent by this rank so far."""
        return sum(one.bytes_sent for one in self._sets)

    def begin(self) -> None:
        """Start a step with zero gradients."""
        for one, ready, done in zip(self._sets, self._ready, self._done, strict=True):
            ready.clear()
            done.clear()
            one.begin()
        self._thread = threading.Thread(target=self._work, name="wirewise-gradients", daemon=True)
        self._thread.start()

    def ready(self, gradients: SharedGradients) -> None:
        """Mark this rank's partial sums of a set as complete."""
        self._ready[self._sets.index(gradients)].set()

    def wait(self, gradients: SharedGradients) -> None:
        """Wait for the exchange of one set; errors as in `finish`."""
        self._done[self._sets.index(gradients)].wait()
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait for all exchanges of the step.

        Raises:
            PeerError: A peer is gone.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Stop exchanging; the thread ends once its current wait has ended or been abandoned."""
        self._given_up.set()

    def _work(self) -> None:
        try:
            left = list(range(len(self._sets)))
            while left:
                while not self._ready[left[0]].wait(_LOOK_S):
                    if self._given_up.is_set():
                        return
                number = min(left[: self._common(left)], key=lambda n: (self._priorities[n], n))
                self._sets[number].exchange()
                self._done[number].set()
                left.remove(number)
        except BaseException as error:
            self._error = error
        finally:
            for done in self._done:
                done.set()

    def _common(self, left: Sequence[int]) -> int:
        """How many of the sets that are left are ready on all ranks."""
        if self._group is None or len(left) == 1:
            return 1
        own = next((place for place, n in enumerate(left) if not self._ready[n].is_set()), len(left))
        return -int(self._group.slowest(-own, "the number of gradients that are ready"))


def subgroup_transports(transport: Transport) -> Callable[[Sequence[int], str], Transport]:
    """Make a factory of transports for subgroups; only their ranks call it, each with the same label.

    All ranks of the group call this function, to agree on a number: the store still has entries of earlier groups of
    the same label, whose addresses are stale.

    Raises:
        InputError: The group is not gloo's, or there is no store.
    """
    group: Any = transport.group
    if not isinstance(group, dist.ProcessGroupGloo):
        with suppress(RuntimeError):
            group = group._get_backend(torch.device("cpu"))
    if not isinstance(group, dist.ProcessGroupGloo) or transport.store is None:
        raise InputError(
            f"the process group is {transport.group.name()} and has {'a' if transport.store else 'no'} store; a "
            "deployment needs gloo, which carries tensors of devices too: start the group with backend "
            "'cpu:gloo,cuda:nccl', or give `store`"
        )
    options: Any = group.options
    number = int(transport.slowest(secrets.randbits(48), "the number of a training"))

    def made(ranks: Sequence[int], label: str) -> Transport:
        store = dist.PrefixStore(f"{number}/{label}", transport.store)  # type: ignore[attr-defined]
        own: Any = dist.ProcessGroupGloo(store, ranks.index(transport.rank), len(ranks), options)
        everyone = len(ranks) == transport.world_size
        # Reports in the store go by the numbers of the job, which a smaller group does not have.
        return Transport(own, timeout_s=transport.timeout_s, store=transport.store if everyone else None)

    return made
