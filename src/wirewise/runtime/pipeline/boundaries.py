"""Values between stages of which one has several ranks: each message is a reshard from one layout to the other.

The ranks of both stages learn shape and type from the first microbatch, make the same reshard plan from the same
links, and execute it for every microbatch; gradients use the reverse plan. Tags are those of the update, the
microbatch and the direction, so moves are in flight concurrently and in any order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import LaidOutTensor, ReshardPlan, StagePlan
from wirewise.runtime.pipeline.layers import Value
from wirewise.runtime.pipeline.messages import DESCRIPTIONS, TAGS, ValueSpec
from wirewise.runtime.pipeline.reshard import Resharder, Resharding
from wirewise.runtime.pipeline.stage import MicrobatchKey
from wirewise.runtime.transport import Transport

__all__ = ["Boundary", "WideInbox", "WideOutbox", "tags_of"]

_LOOK_S = 0.25


def tags_of(plan: StagePlan, value: Value) -> int:
    """Number of tags of a microbatch's message in one direction: 1, or the maximum for reshard plans of these ranks.

    Args:
        plan: Plan of the stages.
        value: Value sent between two of them.
    """
    source, target = plan.width_of(value.source), plan.width_of(value.target)
    if source == target == 1:
        return 1
    # Slices times trees of each, which are one a receiver, a sender, or a few.
    return source * target * (source + target + 8)


class _Known(NamedTuple):
    """Shapes and types that the first microbatch tells."""

    description: ValueSpec
    """Shape and type of this rank's part, where it makes the value."""
    forward: Resharder
    backward: Resharder | None
    """Move of the gradient; None if no gradient comes back."""


class Boundary:
    """Value between stages, with its producing and consuming ranks.

    Args:
        transport: Messages between all ranks of the pipeline.
        plan: Plan of the stages.
        value: Value sent between two stages.
        replica: Pipeline of this rank.
        links: Links between all ranks, from which moves are planned; the same on all ranks.
        number: First of `tags_of` tags of the forward direction; those of the gradients come behind them.
        tags: Number of tags of all values in both directions.
    """

    def __init__(
        self,
        transport: Transport,
        plan: StagePlan,
        value: Value,
        replica: int,
        links: Links,
        number: int,
        tags: int,
    ) -> None:
        self.transport, self.plan, self.value, self.replica = transport, plan, value, replica
        self._links, self._number, self._all_tags = links, number, tags
        self._room = tags_of(plan, value)
        self._sources, self._targets = (
            plan.ranks[plan.stages[stage].position][replica] for stage in (value.source, value.target)
        )
        ends = [
            f"stage {stage} on ranks {','.join(map(str, ranks))}"
            for stage, ranks in ((value.source, self._sources), (value.target, self._targets))
        ]
        self._what = (
            f"the activations {value.name!r} ({ends[1]} waits for {ends[0]})",
            f"the gradients of {value.name!r} ({ends[0]} waits for {ends[1]})",
        )
        self._known: Future[_Known] | None = None

    def tag(self, key: MicrobatchKey, *, forward: bool) -> int:
        """First tag of a message, unique among messages in flight."""
        update, microbatch = key
        own = self._number + (0 if forward else self._room)
        return ((update * self.plan.microbatches + microbatch) * self._all_tags + own) % (TAGS - self._room)

    def name(self, *, forward: bool) -> str:
        """Description of a direction, for error messages."""
        return self._what[0 if forward else 1]

    def ask(self, own: ValueSpec | None = None) -> None:
        """Start exchanging shape and dtype of the value.

        Args:
            own: This rank's part, on producing ranks.
        """
        if self._known is None:
            known: Future[_Known] = Future()
            self._known = known
            threading.Thread(
                target=self._learn, args=(known, own), name="wirewise-boundary", daemon=True
            ).start()

    def known(self) -> _Known:
        """Wait until all producing ranks have described their parts.

        Raises:
            InputError: The parts do not fit the plan's layout.
            PeerError: A peer is gone.
        """
        assert self._known is not None, "known before ask"
        while True:
            try:
                return self._known.result(_LOOK_S)
            except TimeoutError:
                if self._known.done():
                    raise
                self.check_failures(forward=True)

    def check_failures(self, *, forward: bool) -> None:
        """Raise if another rank has failed."""
        if self.transport.has_remote_timeout():
            raise self.transport.failure(self.name(forward=forward), None, "another rank gave up")

    def _learn(self, known: Future[_Known], own: ValueSpec | None) -> None:
        try:
            known.set_result(self._boundary_of(self._exchange_specs(own)))
        except BaseException as error:
            known.set_exception(error)

    def _exchange_specs(self, own: ValueSpec | None) -> list[ValueSpec]:
        """Descriptions of the parts of all ranks that make the value."""
        transport, tag = self.transport, DESCRIPTIONS + self._number
        what, works = f"the description of {self.name(forward=True)}", list[tuple[int, dist.Work]]()

        def begin(post: Callable[..., dist.Work], buffer: Tensor, peer: int) -> None:
            transport.guard(lambda: works.append((peer, post([buffer], peer, tag))), what, peer)

        if own is not None:
            packed = own.pack(self.name(forward=True))
            for peer in (*self._sources, *self._targets):
                if peer != transport.rank:
                    begin(transport.group.send, packed, peer)
        buffers = {peer: ValueSpec.empty() for peer in self._sources if peer != transport.rank}
        for peer, buffer in buffers.items():
            begin(transport.group.recv, buffer, peer)
        for peer, work in works:
            transport.guard(partial(work.wait, transport.timeout), what, peer)
        return [
            own if own is not None and peer == transport.rank else ValueSpec.unpack(buffers[peer])
            for peer in self._sources
        ]

    def _boundary_of(self, specs: list[ValueSpec]) -> _Known:
        one = self._laid_out(specs)
        wants = specs[0].wants_gradient
        forward = self._mover(one, forward=True)
        own = self._sources.index(self.transport.rank) if self.transport.rank in self._sources else 0
        return _Known(specs[own], forward, self._mover(one.reverse, forward=False) if wants else None)

    def _laid_out(self, specs: list[ValueSpec]) -> LaidOutTensor:
        """The value in both layouts; raises where parts do not fit together."""
        first, dims = specs[0], len(specs[0].shape)
        if any(
            (d.dtype, len(d.shape), d.wants_gradient) != (first.dtype, dims, first.wants_gradient)
            for d in specs
        ):
            raise InputError(self._unlike(specs, "parts of one type and as many dimensions"))
        name, (source, target) = (
            self.value.name,
            (
                self.plan.layout_of(self.value.name, stage, self.replica, dims)
                for stage in (self.value.source, self.value.target)
            ),
        )
        split = [dim for dim, axes in enumerate(source.dims) if axes]
        whole = list(first.shape)
        for dim in split:
            whole[dim] = sum(one.shape[dim] for one in specs)
        kind = str(first.dtype).removeprefix("torch.")
        found = LaidOutTensor(name=name, shape=tuple(whole), dtype=kind, source=source, target=target)
        parts = [source.local_shape(found.shape, rank) for rank in self._sources]
        if parts != [tuple(one.shape) for one in specs]:
            raise InputError(self._unlike(specs, f"parts {[list(one) for one in parts]} of {whole}"))
        return found

    def _unlike(self, specs: list[ValueSpec], expected: str) -> str:
        given = ", ".join(f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in specs)
        return (
            f"the ranks {list(self._sources)} of stage {self.value.source} gave {given} as the output of module "
            f"{self.value.name!r}; expected {expected}: name the dimension that they split in the plan's `splits`"
        )

    def _mover(self, one: LaidOutTensor, *, forward: bool) -> Resharder:
        plan = cross_mesh(one, self._links)
        assert isinstance(plan, ReshardPlan)
        found = Resharder(plan, self.transport, compared=True, label=self.name(forward=forward))
        if found.tags > self._room:
            raise PlanError(
                f"{self.name(forward=forward)}: the reshard plan needs {found.tags} tags of {self._room}"
            )
        return found


class _WideEnd:
    """One end of a boundary in one direction.

    Args:
        boundary: The value and its ranks.
        forward: Whether activations travel here; gradients otherwise.
    """

    def __init__(self, boundary: Boundary, *, forward: bool) -> None:
        self._boundary, self._forward = boundary, forward
        self.description: ValueSpec | None = None
        """Shape and type of this rank's part in all messages."""

    def _start(self, key: MicrobatchKey, tensor: Tensor | None) -> Resharding:
        boundary, forward = self._boundary, self._forward
        tag = boundary.tag(key, forward=forward)

        def move() -> list[Tensor]:
            known = boundary.known()
            mover = known.forward if forward else known.backward
            assert mover is not None
            return mover([tensor], tag=tag)

        return Resharding(move)

    def close(self) -> None:
        """Nothing to end: threads of moves end with them."""

    def abandon(self) -> None:
        """Nothing to leave, as for `close`."""


class WideOutbox(_WideEnd):
    """Sends of this rank, alone or with the others of its stage."""

    def __init__(self, boundary: Boundary, *, forward: bool) -> None:
        super().__init__(boundary, forward=forward)
        self._under_way: deque[Resharding] = deque()

    def describe(self, description: ValueSpec) -> None:
        """Send shape and dtype of this rank's part, once, before the first message."""
        self.description = description
        self._boundary.ask(description)

    def send(self, key: MicrobatchKey, tensor: Tensor) -> None:
        """Start sending a tensor, which must not change afterwards.

        Raises:
            InputError: The parts of ranks do not fit together.
            PeerError: A peer is gone, in an earlier message.
        """
        while self._under_way and self._under_way[0].ended(0.0):
            self._under_way.popleft().wait()
        self._under_way.append(self._start(key, tensor.detach().to("cpu").contiguous()))


class WideInbox(_WideEnd):
    """Receives of this rank, forwarded to others of its stage."""

    def __init__(self, boundary: Boundary, *, forward: bool) -> None:
        super().__init__(boundary, forward=forward)
        self.wants_gradient = True
        """Whether a gradient of what was taken goes back."""
        self._moves: dict[MicrobatchKey, Resharding] = {}
        self._waiting: deque[MicrobatchKey] | None = None if forward else deque()
        """Messages to be posted once it is known that they come; None if it is."""

    def expect(self, description: ValueSpec) -> None:
        """Expect gradients of activations with this shape and dtype."""
        self.description = description
        waiting, self._waiting = self._waiting, None
        for key in waiting or ():
            self.post(key)

    def forget(self) -> None:
        """Stop expecting gradients."""
        if self._waiting is not None:
            self._waiting.clear()

    def post(self, key: MicrobatchKey, *, described: bool = False) -> None:
        """Participate in a move from now on, or as soon as its shape is known.

        Args:
            key: Update and microbatch.
            described: Whether the sending ranks send the shape first.
        """
        if described:
            self._boundary.ask()
        if self._waiting is None:
            self._moves[key] = self._start(key, None)
        else:
            self._waiting.append(key)

    def take(self, key: MicrobatchKey) -> Tensor:
        """Wait for this rank's part.

        Raises:
            InputError: The parts of ranks do not fit together.
            PeerError: A peer is gone, or timed out.
        """
        move = self._moves.pop(key)
        while not move.ended(_LOOK_S):
            self._boundary.check_failures(forward=self._forward)
        (found,) = move.wait()
        if self.description is None:
            self.description = self._boundary.known().description
            self.wants_gradient = self.description.wants_gradient
        return found
