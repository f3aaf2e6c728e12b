"""Asynchronous messages of activations and gradients between the ranks of neighbouring stages.

A line carries one value in one direction between two ranks. Its messages have tags of their own (update, microbatch,
line), so they match in any order. Receives are posted before they are needed; otherwise gloo holds back the sender's
bytes. Daemon threads wait for messages in flight and release sent buffers; a timeout names both stages.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.errors import InputError
from wirewise.instruments import blocked
from wirewise.runtime.pipeline.stage import MicrobatchKey
from wirewise.runtime.transport import Transport

__all__ = ["DESCRIPTIONS", "TAGS", "Inbox", "MessageJournal", "Outbox", "ValueSpec"]

_LOOK_S = 0.25
_GRACE_S = 3.0
TAGS = 2**29
"""Number from which tags of microbatch messages wrap around."""
DESCRIPTIONS = 2**29
"""Tag of the description of the first value; tags of standalone reshard plans begin at twice this number."""
_MOST_DIMENSIONS = 12
_TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


class ValueSpec:
    """Shape and dtype of a value, the same for all microbatches, and whether a gradient is returned.

    Args:
        shape: Shape of the tensor of one microbatch.
        dtype: Dtype of its elements.
        wants_gradient: Whether the value depends on trained parameters.
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, wants_gradient: bool) -> None:
        self.shape, self.dtype, self.wants_gradient = shape, dtype, wants_gradient

    def pack(self, label: str) -> Tensor:
        """Encode the description as a message, int64 [3 + most dimensions].

        Raises:
            InputError: The number of dimensions or the dtype is unsupported.
        """
        if len(self.shape) > _MOST_DIMENSIONS or self.dtype not in _TYPES:
            raise InputError(
                f"{label} are {self.dtype} {list(self.shape)}; expected at most {_MOST_DIMENSIONS} dimensions and one "
                f"of: {', '.join(str(one).removeprefix('torch.') for one in _TYPES)}"
            )
        numbers = [_TYPES.index(self.dtype), int(self.wants_gradient), len(self.shape), *self.shape]
        return torch.tensor(numbers + [0] * (3 + _MOST_DIMENSIONS - len(numbers)), dtype=torch.int64)

    @classmethod
    def unpack(cls, packed: Tensor) -> ValueSpec:
        """Decode a message from `pack`."""
        kind, wants, dimensions, *shape = packed.tolist()
        return cls(torch.Size(shape[:dimensions]), _TYPES[kind], bool(wants))

    @staticmethod
    def empty() -> Tensor:
        """Buffer for a packed description."""
        return torch.empty(3 + _MOST_DIMENSIONS, dtype=torch.int64)


class MessageJournal:
    """Journal of a pipeline's messages and updates, for recovery; this base class keeps nothing.

    Ranks may resume from different updates: a rank that is ahead has already sent, in an earlier run, what the other
    needs to catch up, and receives nothing from it until then.
    """

    generation: int = 1
    """Number of the process group, counted from 1; from the second on ranks bring their states."""

    def begin(
        self, transport: Transport, update: int, senders: Iterable[int], replicas: Iterable[int]
    ) -> None:
        """Handle the start of training on all ranks.

        Args:
            transport: Messages between all ranks.
            update: First update of this rank.
            senders: Ranks that send messages to it.
            replicas: Ranks with the same stages, this one included.
        """

    def meet(self, update: int) -> int | None:
        """Wait for ranks that catch up to this update; returns the update to repeat from. None if there is none."""
        return None

    def sent(self, peer: int, line: int, key: MicrobatchKey, tensor: Tensor, description: ValueSpec) -> bool:
        """Log a message, which does not change afterwards; returns whether the peer still needs it."""
        return True

    def holds(self, peer: int, key: MicrobatchKey) -> bool:
        """Whether a peer's message is in the log of an earlier run."""
        return False

    def take(self, peer: int, line: int, key: MicrobatchKey) -> tuple[Tensor, ValueSpec]:
        """Read a message of an earlier run."""
        raise NotImplementedError

    def awaits(self, line: int, key: MicrobatchKey) -> None:
        """Record that this rank needs a message now."""

    def waits(self, arrived: Callable[[], bool]) -> None:
        """Record that this rank is about to wait for messages."""

    def on_reduce(self, update: int) -> None:
        """Record that this rank has its gradients of an update and is about to reduce them."""

    def agree(self, update: int, number: int, settle: Callable[[], Tensor]) -> Tensor:
        """Get the result that all ranks agreed on in an update, from `settle` or from an earlier run.

        Args:
            update: Number of the update.
            number: Index of the agreement, the same on all ranks.
            settle: Collective call that computes it.
        """
        return settle()

    def knows(self, update: int) -> bool:
        """Whether all ranks reached their agreement in this update in an earlier run."""
        return False

    def commit(self, updates: int) -> None:
        """Record the number of completed weight updates of this rank."""


class _Line:
    """One value in one direction between this rank and another.

    Args:
        transport: Messages between all ranks of the pipeline.
        peer: Rank at the other end.
        number: Number of the line, the same at both ends and no other's.
        lines: Number of lines of the pipeline.
        microbatches: Microbatches of an update.
        label: Contents for error messages, such as "activations '3' of stage 1".
        whence: Stages at both ends for error messages.
        journal: Keeps what is sent, and has messages of an earlier run.
    """

    def __init__(
        self,
        transport: Transport,
        peer: int,
        number: int,
        lines: int,
        microbatches: int,
        label: str,
        whence: str,
        journal: MessageJournal | None = None,
    ) -> None:
        self.transport, self.peer, self.what, self.whence = transport, peer, label, whence
        self.journal = journal or MessageJournal()
        self._number, self._lines, self._microbatches = number, lines, microbatches
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._jobs,), name=f"wirewise-wait-{peer}-{number}", daemon=True
        )
        self._thread.start()
        self._finalizer = weakref.finalize(self, _end, self._jobs, self._thread)

    def name(self, key: MicrobatchKey) -> str:
        """A message for people."""
        return f"the {self.what}, microbatch {key[1]} of update {key[0]} ({self.whence})"

    def tag(self, key: MicrobatchKey) -> int:
        """Tag of a message, which no other in flight has."""
        update, microbatch = key
        return ((update * self._microbatches + microbatch) * self._lines + self._number) % TAGS

    @property
    def description_tag(self) -> int:
        """Tag of the description that goes before the first message."""
        return DESCRIPTIONS + self._number

    def close(self) -> None:
        """End the thread."""
        self._finalizer()

    def abandon(self) -> None:
        """Leave the thread to its end, which comes when what it waits for fails."""
        self._finalizer.detach()
        self._jobs.put(None)


class Outbox(_Line):
    """Messages sent by this rank along a line."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._failed: queue.SimpleQueue = queue.SimpleQueue()
        self.description: ValueSpec | None = None
        """Shape and type of all messages; gradients know them from the activations."""
        self._untold = False

    def describe(self, description: ValueSpec) -> None:
        """Set shape and dtype of all messages; sent once, before the first message that the peer needs."""
        self.description, self._untold = description, True

    def send(self, key: MicrobatchKey, tensor: Tensor) -> None:
        """Start sending a tensor, which must not change afterwards.

        Raises:
            PeerError: The peer is gone, now or in an earlier message.
        """
        if not self._failed.empty():
            raise self.transport.failure(self.name(key), self.peer, self._failed.get())
        buffer = tensor.detach().to("cpu").contiguous()
        described = self.description or ValueSpec(buffer.shape, buffer.dtype, False)
        if not self.journal.sent(self.peer, self._number, key, buffer, described):
            return
        if self._untold:
            self._untold = False
            packed = described.pack(self.what)
            self._start(packed, self.description_tag, f"the description of the {self.what}")
        self._start(buffer, self.tag(key), self.name(key))

    def _start(self, buffer: Tensor, tag: int, label: str) -> None:
        if not buffer.numel():
            return
        works: list[dist.Work] = []
        self.transport.guard(
            lambda: works.append(self.transport.group.send([buffer], self.peer, tag)), label, self.peer
        )
        self._jobs.put((works[0], self.transport.timeout, buffer, None, self._failed))


class Inbox(_Line):
    """Messages received by this rank along a line, in posting order."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.description: ValueSpec | None = None
        """Shape and type of all messages; gradients know them from the activations."""
        self.wants_gradient = True
        """Whether a gradient of what was taken goes back."""
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        self._posted: deque[MicrobatchKey] = deque()
        self._waiting: deque[MicrobatchKey] = deque()
        self._asked = False

    def ask(self) -> None:
        """Post the receive of the description."""
        if self.description is None and not self._asked:
            self._asked = True
            self._post(ValueSpec.empty(), self.description_tag, f"the description of the {self.what}")

    def expect(self, description: ValueSpec) -> None:
        """Set shape and dtype of all messages, for gradients of described activations."""
        self.description = description
        self._post_waiting()

    def forget(self) -> None:
        """Stop expecting messages along this line."""
        self._waiting.clear()

    def post(self, key: MicrobatchKey, *, described: bool = False) -> None:
        """Post the receive of a message, now or as soon as its shape is known.

        Args:
            key: Update and microbatch.
            described: Whether the peer sends the shape first.
        """
        if self.journal.holds(self.peer, key):
            return
        if described:
            self.ask()
        self._waiting.append(key)
        self._post_waiting()

    def take(self, key: MicrobatchKey) -> Tensor:
        """Wait for the oldest posted message.

        Raises:
            PeerError: The peer is gone, or timed out.
        """
        if self.journal.holds(self.peer, key):
            tensor, description = self.journal.take(self.peer, self._number, key)
            self.wants_gradient = description.wants_gradient
            return tensor
        if self.description is None:
            self.ask()
            self.description = ValueSpec.unpack(self._next(key))
        self.wants_gradient = self.description.wants_gradient
        self._post_waiting()
        expected = self._posted.popleft()
        assert expected == key, f"{self.name(key)} is taken, posted was {expected}"
        if not self.description.shape.numel():
            return torch.empty(self.description.shape, dtype=self.description.dtype)
        return self._next(key)

    def _post_waiting(self) -> None:
        while self.description is not None and self._waiting:
            key = self._waiting.popleft()
            self._posted.append(key)
            buffer = torch.empty(self.description.shape, dtype=self.description.dtype)
            if buffer.numel():
                self._post(buffer, self.tag(key), self.name(key))

    def _post(self, buffer: Tensor, tag: int, label: str) -> None:
        works: list[dist.Work] = []
        self.transport.guard(
            lambda: works.append(self.transport.group.recv([buffer], self.peer, tag)), label, self.peer
        )
        self._jobs.put((works[0], self.transport.timeout, buffer, self._arrived, self._arrived))

    def _next(self, key: MicrobatchKey) -> Tensor:
        self.journal.awaits(self._number, key)
        self.journal.waits(lambda: not self._arrived.empty())
        with blocked("recv"):
            return self._await_next(self.name(key))

    def _await_next(self, what: str) -> Tensor:
        deadline = time.monotonic() + self.transport.timeout_s + _GRACE_S
        while time.monotonic() < deadline:
            try:
                found = self._arrived.get(timeout=_LOOK_S)
            except queue.Empty:
                if self.transport.has_remote_timeout():
                    raise self.transport.failure(what, self.peer, "another rank gave up") from None
                continue
            if isinstance(found, str):
                raise self.transport.failure(what, self.peer, found)
            return found
        raise self.transport.failure(what, self.peer, "timed out")


def _serve(jobs: queue.SimpleQueue) -> None:
    while (job := jobs.get()) is not None:
        work, timeout, buffer, done, failed = job
        try:
            work.wait(timeout)
            if done is not None:
                done.put(buffer)
        except (RuntimeError, ValueError) as error:
            failed.put(str(error))
        # A buffer must not live on because its thread is idle.
        del job, work, buffer, done, failed


def _end(jobs: queue.SimpleQueue, thread: threading.Thread) -> None:
    jobs.put(None)
    # A thread that lets go of torch's objects while the interpreter shuts down would abort the process.
    thread.join(_GRACE_S)
