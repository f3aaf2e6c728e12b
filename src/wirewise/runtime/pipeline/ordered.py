"""Activations and gradients between devices, whose messages have no tags and match by order alone (NCCL).

Between two ranks and in one direction a receiver posts its receives in the order in which the sender's timetable
sends, so that both ends agree without communication. Activations and gradients have groups of their own: the sends of
the two ends of a pair depend on each other, and on one connection a send would wait for a receive behind it. Nothing
waits on the host but the first message of a value, whose shape is not known; a wait orders the streams of the device.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline.layers import Value
from wirewise.runtime.pipeline.messages import ValueSpec
from wirewise.runtime.pipeline.stage import MicrobatchKey
from wirewise.runtime.transport import Transport

__all__ = ["OrderedChannel", "OrderedInbox", "OrderedOutbox", "message_sequence", "separate_transports"]

_UNDER_WAY = 32
"""Sends whose buffers are kept, where nothing tells that they have ended."""

Order = Callable[[int], Iterator[tuple[Value, MicrobatchKey]]]
"""Messages in order, from an update on."""


def separate_transports(transport: Transport) -> tuple[Transport, Transport]:
    """Make separate transports for activations and for gradients; a collective call.

    Args:
        transport: Messages between all ranks.

    Raises:
        InputError: The ranks are on devices, and their group is not the default one.
    """
    if not transport.on_device:
        return transport, transport
    if not dist.is_initialized() or transport.group is not dist.group.WORLD:
        raise InputError(
            "messages between stages on devices need two groups of all ranks, which only the default group has; call "
            "torch.distributed.init_process_group with backend 'nccl' and leave process_group out"
        )
    ranks = list(range(transport.world_size))
    groups: list[Any] = [dist.new_group(ranks) for _ in range(2)]
    first, second = (Transport(one, timeout_s=transport.timeout_s, store=transport.store) for one in groups)
    return first, second


def message_sequence(
    plan: StagePlan, values: Sequence[Value], sender: int, receiver: int, *, forward: bool, first: int
) -> Iterator[tuple[Value, MicrobatchKey]]:
    """Yield the messages from one position to another, in the sender's timetable order, endlessly from an update on.

    Args:
        plan: Plan of the stages.
        values: All values between stages, in the same order on all ranks.
        sender: Position that sends.
        receiver: Position that receives.
        forward: True for activations, False for gradients.
        first: Number of the first update.
    """
    position = [stage.position for stage in plan.stages]
    for step in _steps(plan, sender, first):
        if step.kind == "W" or (step.kind == "F") != forward:
            continue
        for value in values:
            here, there = (value.source, value.target) if forward else (value.target, value.source)
            if here == step.stage and position[there] == receiver:
                yield value, (step.update, step.microbatch)


def _steps(plan: StagePlan, position: int, first: int) -> Iterator[StagePass]:
    row, m = plan.timetable[position], plan.microbatches
    for action in row:
        if action.microbatch >= m:
            yield StagePass(first, action.kind, action.stage, action.microbatch - m)
    for update in itertools.count(first):
        for action in row:
            later, microbatch = divmod(action.microbatch, m)
            yield StagePass(update + later, action.kind, action.stage, microbatch)


class OrderedChannel:
    """Messages in one direction between this rank and another, sent or received.

    Args:
        transport: Messages of this direction.
        peer: Rank at the other end.
        tag: Tag of all messages, if the group has tags.
        order: Messages to receive, in order; empty on the sending side.
    """

    def __init__(self, transport: Transport, peer: int, tag: int, order: Order) -> None:
        self.transport, self.peer, self._tag, self._make_order = transport, peer, tag, order
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if transport.on_device else torch.device("cpu")
        )
        self.inboxes: dict[Value, OrderedInbox] = {}
        """Values that come along here."""
        self._order: Iterator[tuple[Value, MicrobatchKey]] = iter(())
        self._next: tuple[Value, MicrobatchKey] | None = None
        self._posted: dict[tuple[Value, MicrobatchKey], tuple[dist.Work | None, Tensor]] = {}
        self._under_way: deque[tuple[dist.Work, Tensor]] = deque()

    def begin(self, update: int) -> None:
        """Handle the start of training with an update, on both ends."""
        self._order, self._next = self._make_order(update), None
        self._posted.clear()

    def post(self, value: Value, key: MicrobatchKey, *, waits: bool) -> None:
        """Post all receives up to a message, as far as their shapes are known.

        Args:
            value: Value received along the channel.
            key: Update and microbatch.
            waits: Whether to wait for unknown shapes.

        Raises:
            PeerError: The peer is gone.
        """
        while (value, key) not in self._posted:
            if self._next is None:
                self._next = next(self._order)
            inbox = self.inboxes[self._next[0]]
            if inbox.description is None and not inbox.none_comes:
                if not waits or not inbox.described:
                    return
                packed = ValueSpec.empty().to(self.device)
                self._wait(self._start(self.transport.group.recv, packed, inbox.what), inbox.what)
                inbox.description = ValueSpec.unpack(packed)
            if inbox.description is not None:
                buffer = torch.empty(
                    inbox.description.shape, dtype=inbox.description.dtype, device=self.device
                )
                work = self._start(self.transport.group.recv, buffer, inbox.what) if buffer.numel() else None
                self._posted[self._next] = work, buffer
            self._next = None

    def take(self, value: Value, key: MicrobatchKey) -> Tensor:
        """Get the message, for use by later work on this stream."""
        self.post(value, key, waits=True)
        work, buffer = self._posted.pop((value, key))
        if work is not None:
            self._wait(work, self.inboxes[value].what)
        return buffer

    def send(self, tensor: Tensor, label: str) -> None:
        """Start sending a tensor, which must not change afterwards.

        Args:
            tensor: Tensor to send, on the group's device.
            label: Contents for error messages.
        """
        if not tensor.numel():
            return
        while self._under_way and self._done(label):
            self._under_way.popleft()
        self._under_way.append((self._start(self.transport.group.send, tensor, label), tensor))

    def _done(self, label: str) -> bool:
        """Whether the buffer of the oldest send may go."""
        if self.transport.on_device:
            return self._under_way[0][0].is_completed()
        # gloo tells only who waits.
        if len(self._under_way) > _UNDER_WAY:
            self._wait(self._under_way[0][0], label)
            return True
        return False

    def _start(self, post: Callable[..., dist.Work], buffer: Tensor, label: str) -> dist.Work:
        works: list[dist.Work] = []
        self.transport.guard(lambda: works.append(post([buffer], self.peer, self._tag)), label, self.peer)
        return works[0]

    def _wait(self, work: dist.Work, label: str) -> None:
        if self.transport.on_device:
            # With a timeout NCCL would block the host; its watchdog looks after silent peers.
            self.transport.guard(work.wait, label, self.peer)
        else:
            self.transport.guard(lambda: work.wait(self.transport.timeout), label, self.peer)


class OrderedInbox:
    """Receiver of a value, or of its gradients.

    Args:
        channel: Messages from the sending rank.
        value: Value received along the channel.
        label: Contents for error messages.
        described: Whether the sender sends its shape first.
    """

    def __init__(self, channel: OrderedChannel, value: Value, label: str, *, described: bool) -> None:
        self._channel, self._value, self.what, self.described = channel, value, label, described
        channel.inboxes[value] = self
        self.description: ValueSpec | None = None
        """Shape and type of all messages; gradients know them from the activations."""
        self.none_comes = False
        """Whether the value has no gradient."""

    @property
    def wants_gradient(self) -> bool:
        """Whether a gradient of the received value is returned."""
        return self.description is None or self.description.wants_gradient

    def expect(self, description: ValueSpec) -> None:
        """Set shape and dtype of all messages, for gradients of described activations."""
        self.description = description

    def forget(self) -> None:
        """Stop expecting messages."""
        self.none_comes = True

    def post(self, key: MicrobatchKey, *, described: bool = False) -> None:
        """Post the receive of a message, if shapes are known so far.

        Args:
            key: Update and microbatch.
            described: Whether the sender sends the shape first; known here.
        """
        self._channel.post(self._value, key, waits=False)

    def take(self, key: MicrobatchKey) -> Tensor:
        """Wait for a message.

        Raises:
            PeerError: The peer is gone.
        """
        return self._channel.take(self._value, key)

    def begin(self, update: int) -> None:
        """Handle the start of training with an update, on both ends."""
        self._channel.begin(update)

    def close(self) -> None:
        """Do nothing, as there are no threads."""

    def abandon(self) -> None:
        """Do nothing, as for `close`."""


class OrderedOutbox:
    """Sender of a value, or of its gradients.

    Args:
        channel: Messages to the receiving rank.
        label: Contents for error messages.
    """

    def __init__(self, channel: OrderedChannel, label: str) -> None:
        self._channel, self._what = channel, label
        self.description: ValueSpec | None = None
        """Shape and type of all messages; gradients know them from the activations."""

    def describe(self, description: ValueSpec) -> None:
        """Send shape and dtype, once, before the first message."""
        self.description = description
        self._channel.send(description.pack(self._what).to(self._channel.device), self._what)

    def send(self, key: MicrobatchKey, tensor: Tensor) -> None:
        """Start sending a tensor, which must not change afterwards.

        Args:
            key: Update and microbatch, which the receiver knows from the order.
            tensor: Tensor to send.

        Raises:
            PeerError: The peer is gone.
        """
        self._channel.send(tensor.detach().to(self._channel.device).contiguous(), self._what)

    def close(self) -> None:
        """Do nothing, as there are no threads."""

    def abandon(self) -> None:
        """Do nothing, as for `close`."""
