"""Values exchanged between stages: activations and their gradients, by message or within the rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Literal

from torch import Tensor

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline.boundaries import Boundary, WideInbox, WideOutbox, tags_of
from wirewise.runtime.pipeline.layers import Value
from wirewise.runtime.pipeline.messages import Inbox, MessageJournal, Outbox, ValueSpec
from wirewise.runtime.pipeline.ordered import (
    OrderedChannel,
    OrderedInbox,
    OrderedOutbox,
    message_sequence,
    separate_transports,
)
from wirewise.runtime.pipeline.stage import MicrobatchKey, StageCompute
from wirewise.runtime.transport import Transport

__all__ = ["ValueExchange"]

Kind = Literal["activation", "gradient"]
_In = Inbox | WideInbox | OrderedInbox
_Out = Outbox | WideOutbox | OrderedOutbox


class ValueExchange:
    """Values that the stages of one rank send and receive.

    Args:
        values: All values between stages, in the same order on all ranks.
        plan: Plan that defines the position of stages.
        transport: Messages between all ranks.
        stages: Stages of this rank by index.
        journal: Message log, also of an earlier run.
        links: Links from which moves between stages of several ranks are planned; the same on all ranks.
        in_order: Whether messages match by order alone, without tags; the same on all ranks.
    """

    def __init__(
        self,
        values: Sequence[Value],
        plan: StagePlan,
        transport: Transport,
        stages: Mapping[int, StageCompute],
        journal: MessageJournal,
        links: Links | None = None,
        in_order: bool = False,
    ) -> None:
        self._plan, self._transport, self._stages, self._journal = plan, transport, stages, journal
        self._position, self._replica, _ = plan.place_of(transport.rank)
        self._made: dict[int, list[Value]] = {number: [] for number in stages}
        self._taken: dict[int, list[Value]] = {number: [] for number in stages}
        self._links = links
        self._lines: dict[Value, tuple[_In, _Out]] = {}
        self._values, self._ways = values, separate_transports(transport) if in_order else None
        self._channels: dict[tuple[int, bool, bool], OrderedChannel] = {}
        """Messages that match by order: by peer, whether activations, whether they come."""
        room = [2 * tags_of(plan, value) for value in values]
        for number, value in zip(accumulate(room, initial=0), values, strict=False):
            if value.source in stages:
                self._made[value.source].append(value)
            if value.target in stages:
                self._taken[value.target].append(value)
            if (value.source in stages) != (value.target in stages):
                self._lines[value] = self._line(value, number, sum(room))
        self._local: dict[tuple[Value, Kind, MicrobatchKey], Tensor] = {}
        self._wants: dict[Value, bool] = {}
        """Whether a gradient comes back; known from the first activation on."""

    def begin(self, update: int) -> None:
        """Handle the start of training with an update, on all ranks."""
        for channel in self._channels.values():
            channel.begin(update)

    def post(self, step: StagePass) -> None:
        """Post the receives of a future step."""
        key = (step.update, step.microbatch)
        if step.kind == "F":
            for value in self._taken[step.stage]:
                if value in self._lines:
                    self._lines[value][0].post(key, described=True)
        elif step.kind != "W":
            for value in self._made[step.stage]:
                if value in self._lines and self._wants.get(value, True):
                    self._lines[value][0].post(key)

    def activations(self, stage: StageCompute, key: MicrobatchKey) -> dict[str, Tensor]:
        """Wait for a forward pass's inputs from other stages, by name."""
        found = {}
        for value in self._taken[stage.number]:
            tensor = self._take(value, "activation", key)
            if value not in self._wants:
                self._wants[value] = self._lines[value][0].wants_gradient
            found[value.name] = tensor.to(stage.device).requires_grad_(self._wants[value])
        return found

    def gradients(self, stage: StageCompute, key: MicrobatchKey) -> dict[str, Tensor]:
        """Wait for the gradients of a stage's outputs, by name, summed over consuming stages."""
        found: dict[str, Tensor] = {}
        for value in self._made[stage.number]:
            if self._wants[value]:
                gradient = self._take(value, "gradient", key).to(stage.device)
                # In the order of the consumers, so that sums are the same in every run.
                held = found.get(value.name)
                found[value.name] = gradient if held is None else held + gradient
        return found

    def send_outputs(self, stage: StageCompute, key: MicrobatchKey, outputs: Mapping[str, Tensor]) -> None:
        """Send the outputs of a forward pass to the stages that read them.

        Raises:
            InputError: A tensor has another shape or dtype than in the previous microbatch.
        """
        for value in self._made[stage.number]:
            tensor = outputs[value.name]
            if value not in self._wants:
                self._wants[value] = stage.needs_gradient(key, value.name) and tensor.is_floating_point()
                self._describe(value, tensor)
            if value in self._lines:
                outbox = self._lines[value][1]
                _check_shape(outbox, value, tensor)
                outbox.send(key, tensor)
            else:
                self._local[value, "activation", key] = tensor.detach()

    def send_input_gradients(
        self, stage: StageCompute, key: MicrobatchKey, gradients: Mapping[str, Tensor]
    ) -> None:
        """Send the gradients of a stage's inputs back to the producing stages."""
        for value in self._taken[stage.number]:
            if self._wants[value]:
                if value in self._lines:
                    self._lines[value][1].send(key, gradients[value.name])
                else:
                    self._local[value, "gradient", key] = gradients[value.name]

    @property
    def senders(self) -> set[int]:
        """Ranks that send point-to-point messages to this one."""
        return {inbox.peer for inbox, _ in self._lines.values() if isinstance(inbox, Inbox)}

    def close(self, *, lost: bool = False) -> None:
        """End all threads; pending receives are left to their timeout.

        Args:
            lost: Whether a peer is gone, so that there is nothing to wait for.
        """
        ends: Iterable[_In | _Out] = chain.from_iterable(self._lines.values())
        for end in ends:
            end.abandon() if lost else end.close()

    def _line(self, value: Value, number: int, tags: int) -> tuple[_In, _Out]:
        """Receive and send of a value on this rank."""
        sends = value.source in self._stages
        if max(self._plan.width_of(stage) for stage in (value.source, value.target)) > 1:
            assert self._links is not None
            boundary = Boundary(self._transport, self._plan, value, self._replica, self._links, number, tags)
            return WideInbox(boundary, forward=not sends), WideOutbox(boundary, forward=sends)
        ranks = [
            self._plan.ranks[self._plan.stages[stage].position][self._replica][0]
            for stage in (value.source, value.target)
        ]
        source, target = (
            f"stage {stage} on rank {rank}"
            for stage, rank in zip((value.source, value.target), ranks, strict=True)
        )
        forward = (f"activations {value.name!r}", f"{target} waits for {source}")
        backward = (f"gradients of {value.name!r}", f"{source} waits for {target}")
        if self._ways is not None:
            return self._ordered(value, ranks[1] if sends else ranks[0], (forward, backward))
        common = (self._transport, ranks[1] if sends else ranks[0])
        size = (tags, self._plan.microbatches)
        into, out = (backward, forward) if sends else (forward, backward)
        inbox = Inbox(*common, number + sends, *size, *into, self._journal)
        outbox = Outbox(*common, number + (not sends), *size, *out, self._journal)
        return inbox, outbox

    def _ordered(
        self, value: Value, peer: int, said: tuple[tuple[str, str], tuple[str, str]]
    ) -> tuple[OrderedInbox, OrderedOutbox]:
        """Ends of a value between two ranks, without tags."""
        sends = value.source in self._stages
        into, out = (said[1], said[0]) if sends else said
        inbox = OrderedInbox(
            self._channel(peer, forward=not sends, comes=True),
            value,
            f"the {into[0]} ({into[1]})",
            described=not sends,
        )
        return inbox, OrderedOutbox(
            self._channel(peer, forward=sends, comes=False), f"the {out[0]} ({out[1]})"
        )

    def _channel(self, peer: int, *, forward: bool, comes: bool) -> OrderedChannel:
        key = (peer, forward, comes)
        if key not in self._channels:
            assert self._ways is not None
            there, _, _ = self._plan.place_of(peer)
            order = partial(_order, self._plan, self._values, there, self._position, forward)
            self._channels[key] = OrderedChannel(self._ways[0 if forward else 1], peer, int(forward), order)
        return self._channels[key]

    def _take(self, value: Value, kind: Kind, key: MicrobatchKey) -> Tensor:
        if value in self._lines:
            return self._lines[value][0].take(key)
        return self._local.pop((value, kind, key))

    def _describe(self, value: Value, tensor: Tensor) -> None:
        if value in self._lines:
            inbox, outbox = self._lines[value]
            description = ValueSpec(tensor.shape, tensor.dtype, self._wants[value])
            outbox.describe(description)
            if self._wants[value]:
                inbox.expect(description)
            else:
                inbox.forget()


def _order(
    plan: StagePlan, values: Sequence[Value], sender: int, receiver: int, forward: bool, first: int
) -> Iterator[tuple[Value, MicrobatchKey]]:
    return message_sequence(plan, values, sender, receiver, forward=forward, first=first)


def _check_shape(outbox: _Out, value: Value, tensor: Tensor) -> None:
    assert outbox.description is not None
    if (tensor.shape, tensor.dtype) != (outbox.description.shape, outbox.description.dtype):
        raise InputError(
            f"module {value.name!r} gave {tensor.dtype} {list(tensor.shape)} for one microbatch and "
            f"{outbox.description.dtype} {list(outbox.description.shape)} for the first; expected equal shapes and "
            "types: pad the microbatches"
        )
