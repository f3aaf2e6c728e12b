"""Whole training step of one rank: microbatches through its stage, gradient sums, messages between stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.errors import InputError, PlanError
from wirewise.plans.parallel import DimPlacement, ParallelPlan
from wirewise.runtime.parallel.groups import InFlightTensor, MeshGroups, start_move
from wirewise.runtime.parallel.local import draws_random_numbers
from wirewise.runtime.parallel.microbatches import MicrobatchStep
from wirewise.runtime.parallel.parts import part_of_mesh
from wirewise.runtime.parallel.program import CapturedStep, Phase, RankExecutor, Values
from wirewise.runtime.transport import Transport
from wirewise.runtime.whole_modules import WholeModules

__all__ = ["StageChannel", "StepRunner"]


class StageChannel:
    """Messages between the ranks at the same mesh coordinates of two stages.

    Args:
        transport: Messages between all ranks of the plan.
        plan: Stages and their ranks.
    """

    def __init__(self, transport: Transport, plan: ParallelPlan) -> None:
        self._transport, self._plan = transport, plan
        stage, _ = plan.place_of(transport.rank)
        self._number = plan.ranks[stage].index(transport.rank)
        self._sent: list[tuple[int, dist.Work, Tensor]] = []

    def send(self, move: int, microbatch: int, target: int, tensor: Tensor) -> None:
        """Start sending the tensor of a move to another stage."""
        peer, given = self._plan.ranks[target][self._number], tensor.contiguous()
        what = f"the message of move {move} to stage {target}"
        self._transport.guard(
            lambda: self._sent.append(
                (peer, self._transport.group.send([given], peer, self._tag(move, microbatch)), given)
            ),
            what,
            peer,
        )

    def receive(
        self, move: int, microbatch: int, source: int, shape: tuple[int, ...], dtype: str
    ) -> InFlightTensor:
        """Start receiving the tensor of a move."""
        peer, found = self._plan.ranks[source][self._number], torch.empty(shape, dtype=getattr(torch, dtype))
        what, works = f"the message of move {move} from stage {source}", list[dist.Work]()
        tag = self._tag(move, microbatch)
        self._transport.guard(
            lambda: works.append(self._transport.group.recv([found], peer, tag)), what, peer
        )

        def wait() -> Tensor:
            self._transport.guard(partial(works[0].wait, self._transport.timeout), what, peer)
            return found

        return InFlightTensor(wait)

    def finish(self) -> None:
        """Wait until all sends have completed.

        Raises:
            PeerError: A peer is gone.
        """
        sent, self._sent = self._sent, []
        for peer, work, _ in sent:
            what = f"messages to rank {peer}"
            self._transport.guard(partial(work.wait, self._transport.timeout), what, peer)

    def _tag(self, move: int, microbatch: int) -> int:
        return 1 + max(microbatch, 0) * len(self._plan.moves) + move


class StepRunner:
    """Loss and gradients of a batch, computed by all ranks of a plan together.

    Args:
        step: Captured step of a microbatch, which is the whole batch if the plan has only one.
        plan: Plan of the step.
        groups: This rank's mesh.
        stage: This rank's stage.
        world: Transport between all ranks. Defaults to no ranks beyond the mesh, and no random numbers.

    Raises:
        PlanError: Raised by `RankExecutor`, or random numbers would be in another order than on one device.
    """

    def __init__(
        self,
        step: CapturedStep,
        plan: ParallelPlan,
        groups: MeshGroups,
        stage: int = 0,
        world: Transport | None = None,
    ) -> None:
        self.plan, self.graph, self.world, self._stage = plan, step.graph, world, stage
        self._messages = StageChannel(world, plan) if world is not None and plan.stages > 1 else None
        self._parts = step if isinstance(step, MicrobatchStep) else None
        if plan.microbatches > 1 and self._parts is None:
            raise InputError(
                f"the plan has {plan.microbatches} microbatches, the step is that of a whole batch; expected what "
                "`of_microbatch` makes of both"
            )
        self.program = RankExecutor(step, plan, groups, stage, self._messages, self._parts)
        self._random = [node.name for node in self.program.nodes if draws_random_numbers(node)]
        if self._random and (plan.stages > 1 or plan.microbatches > 1):
            raise PlanError(
                f"{self._random[0]} draws random numbers, which {plan.stages} stages and {plan.microbatches} "
                "microbatches would draw in another order than one device; expected one stage and one microbatch, or "
                "a model without dropout"
            )
        nodes = step.graph.nodes
        self.parameters = {nodes[n].source: n for n in self.program.held if nodes[n].op == "parameter"}
        """Index of the node of each parameter of this stage, by its name."""
        self.buffers = {nodes[n].source: n for n in self.program.held if nodes[n].op == "buffer"}
        """Index of the node of each buffer of this stage, by its name."""
        self._inputs = {n: int(nodes[n].source) for n in self.program.held if nodes[n].op == "input"}
        self.own_gradients = {
            name: number
            for name, number in step.graph.gradients.items()
            if self.program.end_stage(number) == stage
        }
        """Index of the node of the gradient of each parameter of this stage, by its name."""

    def __call__(
        self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], *, backward: bool = True
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Execute a step.

        Args:
            inputs: The whole batch, the same on all ranks.
            state: This rank's parts of parameters and buffers, by name.
            backward: Whether gradients are wanted.

        Returns:
            Loss, this rank's parts of the gradients, new values of buffers.

        Raises:
            InputError: A batch of other shapes than the captured one.
            PeerError: A peer is gone.
        """
        self._share_random_numbers()
        self.program.begin()
        held = {number: state[name] for name, number in (self.parameters | self.buffers).items()}
        held |= self.program.constants()
        of_batch = self._of_batch(inputs, state)
        open_: dict[int, Values] = {}
        losses: list[Tensor] = []
        sums: dict[str, Tensor] = {}
        ended: dict[str, InFlightTensor] = {}
        buffers: dict[str, Tensor] = {}
        with torch.no_grad():
            for phase, microbatch in self._timetable(backward=backward):
                if phase == "forward":
                    open_[microbatch] = self.program.values(
                        microbatch, held | self._batch(inputs, microbatch)
                    )
                    open_[microbatch].of_batch = self._rows_of(of_batch, microbatch)
                values = open_[microbatch]
                own_loss = self.plan.stage_of[self.graph.loss] == self._stage
                until = self.graph.loss if own_loss and not backward else None
                self.program.run(phase, values, until)
                if own_loss and phase == ("backward" if backward else "forward"):
                    # Not before the backward pass, which would wait for what other ranks add to the loss.
                    losses.append(self.program.end(self.graph.loss, values) * self._factor(self.graph.loss))
                if phase == "backward":
                    last = microbatch == self.plan.microbatches - 1
                    self._add(values, sums, ended, last=last)
                    buffers = self._new_buffers(values)
                    del open_[microbatch]
            gradients = {name: pending.wait() for name, pending in ended.items()}
            # As autograd leaves them: none for what a branch of a module did not take, which an optimizer then skips.
            for name in [name for name in gradients if self._is_absent(name)]:
                del gradients[name]
            loss = self._loss(losses)
            if self._messages is not None:
                self._messages.finish()
            if backward:
                self._share_buffers(buffers)
        return loss, gradients, buffers

    def _timetable(self, *, backward: bool) -> Iterator[tuple[Phase, int]]:
        """Passes of this stage in their order: forward passes ahead for each later stage, then alternately (1F1B)."""
        count = self.plan.microbatches
        ahead = min(count, self.plan.stages - self._stage) if backward else count
        for microbatch in range(count + ahead):
            if microbatch < count:
                yield "forward", microbatch
            if backward and microbatch >= ahead - 1 and microbatch - ahead + 1 < count:
                yield "backward", microbatch - ahead + 1

    def _batch(self, inputs: Sequence[Tensor], microbatch: int) -> dict[int, Tensor]:
        """This rank's parts of a microbatch."""
        found = {}
        for number, place in self._inputs.items():
            node, given = self.graph.nodes[number], inputs[place]
            dims = [dim for dim, size in enumerate(node.shape) if given.shape[dim] != size]
            if len(dims) > 1 or any(given.shape[d] != node.shape[d] * self.plan.microbatches for d in dims):
                raise InputError(
                    f"input {place} is {list(given.shape)}; this step was captured for {list(node.shape)} in each of "
                    f"{self.plan.microbatches} microbatches: give a batch of that size, or capture and plan again"
                )
            part = given.chunk(self.plan.microbatches, dims[0])[microbatch] if dims else given
            groups = self.program.groups
            placements = self.program.placements(number)
            found[number] = part_of_mesh(part, placements, groups.mesh, groups.place)
        return found

    def _add(
        self, values: Values, sums: dict[str, Tensor], ended: dict[str, InFlightTensor], *, last: bool
    ) -> None:
        """Add up the gradients of a microbatch; behind the last one they move to where they lie in the end."""
        count = self.plan.microbatches
        for name, number in self.own_gradients.items():
            once = count > 1 and self.program.once(number)
            if count == 1:
                ended[name] = InFlightTensor(partial(self.program.end, number, values))
                continue
            own = values.found[number] if once else self.program.end(number, values)
            factor = self._factor(number)
            sums[name] = own * factor if name not in sums else sums[name].add_(own, alpha=factor)
            if last:
                total = sums[name]
                ended[name] = (
                    self.program.start_final_move(number, total)
                    if once
                    else InFlightTensor(partial(torch.detach, total))
                )

    def _is_absent(self, name: str) -> bool:
        return WholeModules.without_gradient(self.program.nodes[self.own_gradients[name]])

    def _factor(self, number: int) -> float:
        """Weight of a microbatch's output in the batch's."""
        return 1.0 if self._parts is None else self._parts.accumulation.factor(number)

    def _of_batch(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor]) -> dict[int, Any]:
        """Values of the whole batch that microbatches take."""
        if self._parts is None:
            return {}
        taken = self._parts.buffers_of_batch
        whole = {name: self._wholly(state[name], n) for name, n in self.buffers.items() if name in taken}
        with torch.no_grad():
            return self._parts.values_of_batch(inputs, whole)

    def _rows_of(self, of_batch: Mapping[int, Any], microbatch: int) -> dict[int, Any]:
        """This rank's parts of what is a microbatch's of the whole batch's values."""
        found: dict[int, Any] = {}
        groups = self.program.groups
        for number, value in of_batch.items():
            assert self._parts is not None
            if self.plan.stage_of[number] != self._stage:
                continue
            totals = number in self._parts.accumulation.totals
            rows = value if totals else self._parts.of_rows(number, value, microbatch)
            placements = self.program.placements(number, int(totals))
            part = part_of_mesh(rows, placements, groups.mesh, groups.place)
            found[number] = (value, part) if totals else part
        return found

    @property
    def needs_whole_batch(self) -> str:
        """Name of a node computed from the whole batch before its microbatches; empty if there is none."""
        if self._parts is None:
            return ""
        found = {*self._parts.accumulation.of_batch, *self._parts.accumulation.totals}
        # What depends on no input is the same for whichever rows.
        return next((self.graph.nodes[n].name for n in sorted(found) if self._takes_input(n)), "")

    def _takes_input(self, number: int) -> bool:
        stack, seen = [number], set[int]()
        while stack:
            one = stack.pop()
            if self.graph.nodes[one].op == "input":
                return True
            if one not in seen:
                seen.add(one)
                stack += self.graph.nodes[one].inputs
        return False

    def whole_parameter(self, name: str, part: Tensor | None) -> Tensor:
        """Gather a parameter of any stage on all ranks, which must call it in the same order.

        Args:
            name: Name of the parameter.
            part: This rank's shard. None if another stage has it.

        Raises:
            PeerError: A peer is gone.
        """
        number = self._numbers["parameter", name]
        own = None if part is None else self._wholly(part, number)
        return self._from_stage(number, own, f"the parameter {name!r}")

    def share_all_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Broadcast the buffers changed by steps to all stages, in place.

        Raises:
            PeerError: A peer is gone.
        """
        if self.plan.stages == 1:
            return
        for name in self.graph.buffers:
            number = self._numbers["buffer", name]
            buffers[name].copy_(self._from_stage(number, buffers[name], f"the buffer {name!r}"))

    def _from_stage(self, number: int, whole: Tensor | None, label: str) -> Tensor:
        """A tensor that the stage of its node has, on all ranks, bit by bit."""
        node, stage = self.graph.nodes[number], self.plan.stage_of[number]
        if self.plan.stages == 1 or self.world is None:
            assert whole is not None
            return whole
        own = torch.zeros(node.shape, dtype=getattr(torch, node.dtype))
        if self.world.rank == self.plan.ranks[stage][0]:
            assert whole is not None
            own.copy_(whole)
        # Bytes: zeros of the other ranks change none, whatever the type.
        self.world.all_reduce(own.view(-1).view(torch.uint8), label)
        return own

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        """Indices of the nodes of parameters and buffers, by their kind and name."""
        kinds = ("parameter", "buffer")
        return {(node.op, node.source): n for n, node in enumerate(self.graph.nodes) if node.op in kinds}

    def _wholly(self, part: Tensor, number: int) -> Tensor:
        """A buffer of which ranks have parts."""
        groups = self.program.groups
        for axis, placed in reversed(list(enumerate(self.program.placements(number)))):
            part = start_move(groups, axis, part, placed, DimPlacement("R")).wait()
        return part

    def _new_buffers(self, values: Values) -> dict[str, Tensor]:
        """New values of buffers, whole: every rank keeps all of them, so that a state has them as one device."""
        return {
            name: self._wholly(self.program.end(number, values), self.buffers[name])
            for name, number in self.graph.buffers.items()
            if self.program.end_stage(number) == self._stage
        }

    def _share_buffers(self, found: dict[str, Tensor]) -> None:
        """Give new values of buffers to the other stages that take them, which would go on with old ones."""
        for name, (number, stages) in self._taken_elsewhere.items():
            assert self.world is not None
            node, home = self.graph.nodes[number], self.plan.stage_of[number]
            own = torch.zeros(node.shape, dtype=getattr(torch, node.dtype))
            if self.world.rank == self.plan.ranks[home][0]:
                own = found[name].clone(memory_format=torch.contiguous_format)
            self.world.all_reduce(own, f"the buffer {name!r}")
            if self._stage in stages:
                found[name] = own

    @cached_property
    def _taken_elsewhere(self) -> dict[str, tuple[int, set[int]]]:
        """Buffers that change and that several stages take: their nodes, and all stages that have them."""
        nodes, stages = self.graph.nodes, self.plan.stage_of
        found = {}
        for number, node in enumerate(nodes):
            if node.op == "buffer" and node.source in self.graph.buffers:
                own = {stages[user] for user in self.graph.users[number] if nodes[user].op != "output"}
                if own | {stages[number]} != {stages[number]}:
                    found[node.source] = (number, own | {stages[number]})
        return found

    def _loss(self, losses: Sequence[Tensor]) -> Tensor:
        """Loss of the batch, on all ranks."""
        # Of the type that the rank with the loss sends: gloo ends the process where lengths differ.
        empty = torch.zeros((), dtype=getattr(torch, self.graph.nodes[self.graph.loss].dtype))
        own = losses[0] if len(losses) == 1 else empty
        if len(losses) > 1:
            own = torch.stack(list(losses)).sum()
        if self.plan.stages > 1 and self.world is not None:
            # One rank of the stage that has it gives it.
            first = self.plan.ranks[self.plan.stage_of[self.graph.loss]][0]
            own = own.clone() if self.world.rank == first else torch.zeros_like(own)
            self.world.all_reduce(own, "the loss")
        return own

    def _share_random_numbers(self) -> None:
        """All ranks draw what rank 0 would."""
        if self._random and self.world is not None:
            state = {"state": torch.get_rng_state()}
            self.world.broadcast(state, "the state of the random numbers", compared=True)
            torch.set_rng_state(state["state"])
