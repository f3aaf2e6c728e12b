"""Help for a lost stage to catch up: waiting ranks each compute some of its microbatches.

Every helper computes microbatches of the lost stage from the logs of that stage's neighbours. "exact": the gradient
of each microbatch is sent, and the replacement sums them in timetable order, so its weights are bit-identical to
those of a training without faults. "fast": each rank sends the sum of its own gradients, a message of the weights'
size. Outputs are sent too, for the replacement's log, as a neighbour may be the next to be lost.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.runtime.pipeline import INPUT, LayerGraph, Pipeline
from wirewise.runtime.pipeline.feed import Batch, BatchFeed
from wirewise.runtime.pipeline.messages import ValueSpec
from wirewise.runtime.pipeline.stage import LOSS, MicrobatchKey
from wirewise.runtime.recovery.logs import LoggedMessages, MessageKey, SenderLog
from wirewise.runtime.recovery.recompute import RecoveryJournal

__all__ = ["HelperOptions", "recompute_together"]

_TAG = 2**30 + 2**29
"""Tags of messages between a replacement and its helpers; nothing else travels between them then."""


class HelperOptions(NamedTuple):
    """Options for the work of waiting ranks."""

    build: Callable[[], LayerGraph]
    """Function that builds new modules of the model, for the helped stage."""
    ranks: int = 2
    """Ranks that share a lost stage's microbatches, including the replacement."""
    mode: Literal["exact", "fast"] = "exact"
    """Whether weights are bit-identical, or depend on the order in which gradients are summed."""


def recompute_together(
    pipeline: Pipeline,
    journal: RecoveryJournal,
    batches: Callable[[int], Iterable[Batch]],
    helping: HelperOptions,
) -> None:
    """Bring the one rank that is behind to the next of the others, with the help of others; a collective call.

    It comes after `Pipeline.reconnect`, or `load_state_dict` on a replacement, and before `train`. If no rank or
    several are behind, it does nothing: these catch up in `train`, each by itself.

    Args:
        pipeline: Pipeline of this rank.
        journal: Journal of the pipeline.
        batches: Batches from the given update on.
        helping: How ranks help, the same on all ranks.

    Raises:
        InputError: The plan has replicas or several stages per rank, or the logs lack a message.
        PeerError: A peer is gone.
    """
    plan = pipeline.plan
    if plan.replicas > 1 or len(plan.stages) != plan.world_size:
        raise InputError(
            f"the plan has {plan.replicas} replicas and {len(plan.stages)} stages on {plan.world_size} ranks; "
            "helpers share the microbatches of one stage a rank without replicas: leave `helping` out"
        )
    if journal.fetches:
        raise InputError(
            "got helping, and logs that are fetched from other hosts, which only ranks that are behind get; leave "
            "helping out, or give a folder that all hosts see"
        )
    pipeline.begin()
    levels = sorted(set(journal.done))
    if len(levels) == 1 or journal.done.count(levels[0]) > 1:
        return
    lost = journal.done.index(levels[0])
    size = min(max(helping.ranks, 1), plan.world_size, plan.microbatches)
    ranks = [(lost + number) % plan.world_size for number in range(size)]
    rank = pipeline.transport.rank
    if rank in ranks:
        share = _Share(pipeline, journal.past(lost), ranks, helping)
        feed = BatchFeed(iter(batches(levels[0])), levels[0], plan)
        for number in range(levels[0], levels[1]):
            if rank == lost:
                pipeline.update_by(lambda update, scale: share.lead(update, scale, feed, journal.log))
            else:
                share.help(number, feed)
    journal.meet(levels[1])


class _Passes(NamedTuple):
    """Results of the passes of one microbatch."""

    gradients: Sequence[Tensor | None]
    """Gradients of the weights, in the order of the stage's parameters."""
    outputs: dict[str, Tensor]
    """Activations for later stages, by module."""
    back: dict[str, Tensor]
    """Gradients for earlier stages, by module."""


class _Share:
    """The microbatches of a lost stage that one rank computes.

    Args:
        pipeline: Pipeline of this rank.
        past: Messages that the lost rank was sent.
        ranks: Ranks that share the microbatches, the lost one first.
        helping: How they do.
    """

    def __init__(
        self, pipeline: Pipeline, past: LoggedMessages, ranks: Sequence[int], helping: HelperOptions
    ) -> None:
        plan, self.transport, self.past = pipeline.plan, pipeline.transport, past
        self.lost, self.helpers, self.exact = ranks[0], ranks[1:], helping.mode == "exact"
        position = plan.place_of(self.lost)[0]
        number = next(n for n, stage in enumerate(plan.stages) if stage.position == position)
        (own,) = pipeline.stages.values()
        self.stage = own if own.number == number else own.of_stage(helping.build(), number)
        weighing = [action for action in plan.timetable[position] if action.kind in "BW"]
        self.order = [action.microbatch % plan.microbatches for action in weighing]
        """Microbatches in the order in which their gradients add up."""
        self.split = any(action.kind == "W" for action in weighing)
        place = list(ranks).index(self.transport.rank)
        self.own = [microbatch for microbatch in self.order if microbatch % len(ranks) == place]
        values = list(enumerate(pipeline.layers.values(plan)))
        peers = [plan.ranks[stage.position][0][0] for stage in plan.stages]
        # Activations of a value have twice its number as their channel, its gradients one more.
        self.takes = [(v.name, 2 * n, peers[v.source]) for n, v in values if v.target == number]
        self.gives = [(v.name, 2 * n, peers[v.target]) for n, v in values if v.source == number]

    def lead(self, update: int, scale: float, feed: BatchFeed, log: SenderLog) -> None:
        """Have all microbatches of an update computed; their gradients are in the parameters afterwards."""
        parameters = list(self.stage.parameters())
        weights = torch.cat(
            [*(_raw(p.data) for p in parameters), _raw(torch.tensor(scale, dtype=torch.float64))]
        )
        self._exchange(update, 0, dict.fromkeys(self.helpers, weights), {})
        found = self._compute(update, scale, feed)
        sizes = {peer: torch.empty(1, dtype=torch.int64) for peer in self.helpers}
        self._exchange(update, 1, {}, sizes)
        packed = {peer: torch.empty(int(size), dtype=torch.uint8) for peer, size in sizes.items()}
        self._exchange(update, 2, {}, packed)
        for raw in packed.values():
            given = torch.load(io.BytesIO(raw.numpy().data), weights_only=True)
            found |= {microbatch: _Passes(*one) for microbatch, one in given.items()}
        self._note(update, found, log)
        # Sums of one rank stand with its first microbatch.
        _add_up(parameters, [found[microbatch].gradients for microbatch in self.order])

    def help(self, update: int, feed: BatchFeed) -> None:
        """Compute this rank's microbatches with weights from the replacement, and send what they gave."""
        parameters = list(self.stage.parameters())
        room = [p.nbytes for p in parameters]
        weights = torch.empty(sum(room) + 8, dtype=torch.uint8)
        self._exchange(update, 0, {}, {self.lost: weights})
        *parts, scale = weights.split([*room, 8])
        for parameter, part in zip(parameters, parts, strict=True):
            _raw(parameter.data).copy_(part)
        found = self._compute(update, float(scale.clone().view(torch.float64)), feed)
        content = io.BytesIO()
        torch.save({microbatch: tuple(one) for microbatch, one in found.items()}, content)
        packed = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
        self._exchange(update, 1, {self.lost: torch.tensor([len(packed)])}, {})
        self._exchange(update, 2, {self.lost: packed}, {})

    def _exchange(
        self, update: int, turn: int, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]
    ) -> None:
        what = f"the shared recomputation of update {update} of the stage of rank {self.lost}"
        self.transport.exchange(what, _TAG + 3 * (update % 2**10) + turn, sends, receives)

    def _compute(self, update: int, scale: float, feed: BatchFeed) -> dict[int, _Passes]:
        """Passes of this rank's microbatches; in fast mode the first one has the sum of all gradients."""
        assert feed.has(update)
        parameters = list(self.stage.parameters())
        found = {}
        for microbatch in self.own:
            found[microbatch] = self._pass((update, microbatch), scale, feed, parameters)
        feed.forget(update)
        if not self.exact and found:
            _add_up(parameters, [one.gradients for one in found.values()])
            summed, nothing = _taken(parameters), (None,) * len(parameters)
            found = {m: one._replace(gradients=nothing) for m, one in found.items()}
            found[self.own[0]] = found[self.own[0]]._replace(gradients=summed)
        return found

    def _pass(
        self, key: MicrobatchKey, scale: float, feed: BatchFeed, parameters: Sequence[nn.Parameter]
    ) -> _Passes:
        inputs, targets = (part.to(self.stage.device) for part in feed.part(*key))
        values = {INPUT: inputs} if INPUT in self.stage.takes else {}
        for name, channel, peer in self.takes:
            tensor, description = self.past.take(MessageKey(peer, self.lost, channel, *key))
            values[name] = tensor.to(self.stage.device).requires_grad_(description.wants_gradient)
        outputs = self.stage.forward(key, values, targets if self.stage.has_loss else None, scale)
        outputs.pop(LOSS, None)
        gradients: dict[str, Tensor] = {}
        for name, channel, peer in self.gives:
            if self.stage.needs_gradient(key, name) and outputs[name].is_floating_point():
                tensor, _ = self.past.take(MessageKey(peer, self.lost, channel + 1, *key))
                held, given = gradients.get(name), tensor.to(self.stage.device)
                gradients[name] = given if held is None else held + given
        if self.split:
            back = self.stage.backward_inputs(key, gradients)
            self.stage.backward_weights(key)
        else:
            back = self.stage.backward(key, gradients)
        return _Passes(_taken(parameters), outputs, back)

    def _note(self, update: int, found: Mapping[int, _Passes], log: SenderLog) -> None:
        """Log what the stage would have sent."""
        for microbatch in self.order:
            passes = found[microbatch]
            for name, channel, peer in self.gives:
                tensor = passes.outputs[name].cpu().contiguous()
                wanted = self._wanted(name, channel, peer, (update, microbatch))
                described = ValueSpec(tensor.shape, tensor.dtype, wanted)
                log.append(MessageKey(self.lost, peer, channel, update, microbatch), tensor, described)
            for name, channel, peer in self.takes:
                if name in passes.back:
                    tensor = passes.back[name].cpu().contiguous()
                    log.append(MessageKey(self.lost, peer, channel + 1, update, microbatch), tensor)

    def _wanted(self, name: str, channel: int, peer: int, key: MicrobatchKey) -> bool:
        """Whether a gradient came back for a value."""
        return self.past.has(MessageKey(peer, self.lost, channel + 1, *key))


def _add_up(parameters: Sequence[nn.Parameter], parts: Iterable[Sequence[Tensor | None]]) -> None:
    """Add gradients up as back-propagation does: the first as it is, each other to the sum before it."""
    for parameter in parameters:
        parameter.grad = None
    for gradients in parts:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None and parameter.grad is None:
                parameter.grad = gradient
            elif gradient is not None and parameter.grad is not None:
                parameter.grad += gradient


def _taken(parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


def _raw(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, uint8 [bytes]."""
    return tensor.detach().reshape(-1).view(torch.uint8)
