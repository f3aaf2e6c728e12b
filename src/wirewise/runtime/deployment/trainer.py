"""Training under a deployment plan: each rank runs its modules on its rows, and gradients are exchanged as planned."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.errors import InputError, PlanError
from wirewise.plans.deployment import DeploymentPlan
from wirewise.runtime.deployment.factors import FactorExchange
from wirewise.runtime.deployment.gradients import (
    GradientQueue,
    ParameterServers,
    RingAllReduce,
    SharedGradients,
    subgroup_transports,
)
from wirewise.runtime.deployment.moves import Rows, ValueMove
from wirewise.runtime.pipeline.groups import check_same_plan
from wirewise.runtime.pipeline.layers import LayerGraph
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["Around", "Deployment"]

Around = Callable[[str, str, int], AbstractContextManager[Any]]
"""Context of a pass, by name of a module, "forward", "backward" or "product", and number of rows. The products of a
group's factors run together, under the name of its first module."""

_MIXING = (nn.modules.batchnorm._BatchNorm,)
"""Modules that mix the rows of a batch while they are trained."""


class Deployment:
    """Trainer of a model on unequal ranks under a plan; every rank of the plan creates one.

    A step is equivalent to one process with the whole batch: the loss is the mean over all rows, and parameters then
    have the gradients of that mean, on every rank that has their module. Any optimizer may follow.

    Args:
        layers: The model, or a list of modules in sequence; modules treat each row of the batch independently. The
            same on all ranks.
        plan: Ranks, rows and communication of each module, the same on all ranks.
        loss: Mean loss over rows, from the model's output and the targets. None if the model returns it, from inputs
            and targets (`LayerGraph(model, several=True)`).
        process_group: Ranks of the plan, gloo. Defaults to the default group.
        around: Context manager around the compute of each pass of a module, without its messages.
        timeout_s: Seconds to wait for a message before its sender counts as hung.
        store: Torch store shared by all ranks, for a group that is not the default one.

    Raises:
        PlanError: The plan does not fit the model or the group, or differs between ranks.
        InputError: Another argument is invalid.
        PeerError: A peer is gone.
    """

    def __init__(
        self,
        layers: LayerGraph | nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
        plan: DeploymentPlan,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        process_group: dist.ProcessGroup | Transport | None = None,
        around: Around | None = None,
        timeout_s: float = 120.0,
        store: Any = None,
    ) -> None:
        layers = layers if isinstance(layers, LayerGraph) else LayerGraph(layers)
        plan.check_itself()
        self.layers, self.plan, self._loss = layers, plan, loss
        self._around: Around = around or (lambda *_: nullcontext())
        self.transport = transport = transport_of(process_group, timeout_s=timeout_s, store=store)
        words = f"{plan.to_json()}\n{layers.sources!r}"
        digest = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little") >> 1
        check_same_plan(transport, plan, digest)
        self._order = _order(layers, plan)
        self._rows: dict[str, Rows] = {name: plan.rows_of(name) for name in self._order}
        self._check_modules()
        self.modules = {
            name: layers.modules[name] for name in self._order if transport.rank in self._rows[name]
        }
        """Modules of this rank, by name."""
        self._targets = self._needed()
        self._first: dict[tuple[str, int], str] = {}
        """First module that takes a value in rows of that number, by both."""
        self._kinds: dict[str, list[int]] = {name: [] for name in self._order}
        """Numbers of rows in which a value is taken."""
        for (source, name), number in self._targets.items():
            if self._first.setdefault((source, number), name) == name:
                self._kinds[source].append(number)
        group_of = subgroup_transports(transport)
        moving = group_of(range(transport.world_size), "deployment rows")
        self._moves = self._made_moves(moving)
        self._out, self._back = self._orders()
        self._transports = [moving]
        self._factors: list[tuple[str, tuple[int, ...], FactorExchange]] = []
        """Sufficient factors in the order of the backward pass: name of a group's first module, ranks."""
        self._waits: dict[str, list[tuple[tuple[int, ...], SharedGradients]]] = {}
        """Gradients to exchange once a module was passed backward, by its name; with the ranks."""
        self._queues = self._made_queues(group_of)
        self.bytes_sent = 0
        """Payload that this rank has sent in all steps."""
        self.align()

    def parameters(self) -> list[nn.Parameter]:
        """Trained parameters of this rank, without duplicates, for an optimizer."""
        found = (p for module in self.modules.values() for p in module.parameters() if p.requires_grad)
        return list(dict.fromkeys(found))

    def step(self, *batch: Tensor) -> Tensor:
        """Run forward and backward over a batch, and exchange its gradients.

        Args:
            batch: Inputs of the model, and the targets for `loss`: all rows on every rank, of which this rank's are
                read, [batch, ...] each.

        Returns:
            This rank's partial sum of the mean loss, 0 without the last module; `total` sums them.

        Raises:
            InputError: The number of tensors or of rows is not the plan's.
            PeerError: A peer is gone; parameters are unchanged by the step.
        """
        names = [*self.layers.inputs, *(["targets"] if self._loss is not None else [])]
        if len(batch) != len(names):
            raise InputError(f"got {len(batch)} tensors; expected {len(names)}: {', '.join(names)}")
        given = dict(zip(names, batch, strict=True))
        for name, value in given.items():
            if len(value) != self.plan.batch:
                raise InputError(
                    f"{name!r} has {len(value)} rows; expected {self.plan.batch}, the batch of the plan"
                )
        queues = list(self._queues.values())
        before = sum(queue.bytes_sent for queue in queues)
        for parameter in self.parameters():
            parameter.grad = None
        for queue in queues:
            queue.begin()
        try:
            outputs, leaves = self._forward(given)
            found = self._backward(outputs, leaves, given)
            self.bytes_sent += sum(move.finish() for move in self._back)
            for name, devices, factors in self._factors:
                self._queues[devices].wait(factors)
                with self._around(name, "product", self.plan.batch):
                    factors.multiply()
            for queue in queues:
                queue.finish()
        except BaseException:
            for queue in queues:
                queue.abandon()
            raise
        self.bytes_sent += sum(queue.bytes_sent for queue in queues) - before
        return found

    def total(self, addend: Tensor) -> float:
        """Sum a value over all ranks, such as their partial sums of the loss."""
        return float(self.transport.total(float(addend), "the sum of the losses"))

    def align(self) -> None:
        """Broadcast every module's parameters and buffers from its first rank to all ranks.

        Every rank then has the whole state. Ranks that compute sums redundantly, as under duplicate, may differ in
        the last bits if their CPUs do; this makes them equal again.
        """
        with torch.no_grad():
            for name, module in self.layers.modules.items():
                first = min(self._rows[name])
                for part, tensor in (*module.named_parameters(), *module.named_buffers()):
                    self._from(first, tensor, f"the state of {name}.{part}")

    def close(self) -> None:
        """End threads, and restore the modules."""
        for queue in self._queues.values():
            queue.abandon()
        for *_, factors in self._factors:
            factors.close()
        for transport in self._transports:
            transport.close()

    def _forward(
        self, batch: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[tuple[str, int], Tensor]]:
        """Outputs of this rank's modules, and what they took: by name of the value and number of its rows."""
        outputs, leaves = dict[str, Tensor](), dict[tuple[str, int], Tensor]()
        for move in self._out:
            if move.shape is not None:
                move.open(forward=True)
        for name in self._order:
            if name in self.modules:
                module = self.modules[name]
                given = [self._taken(s, name, batch, outputs, leaves) for s in self.layers.sources[name]]
                if any(getattr(part, "inplace", False) for part in module.modules()):
                    given = [value.clone() for value in given]
                with self._around(name, "forward", self._count(name)):
                    outputs[name] = self._checked(name, module(*given))
                for move in self._moves[name].values():
                    if move.shape is None:
                        move.send_kind(outputs[name])
                    move.send(outputs[name].detach(), forward=True)
        return outputs, leaves

    def _taken(
        self,
        source: str,
        name: str,
        batch: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        leaves: dict[tuple[str, int], Tensor],
    ) -> Tensor:
        """A value as a module takes it: a leaf, which gathers its gradient."""
        if source in batch:
            start, stop = self._rows[name][self.transport.rank]
            return batch[source][start:stop]
        key = source, self._targets[source, name]
        if key not in leaves:
            move, own = self._moves[source].get(key[1]), outputs.get(source)
            if move is None:
                assert own is not None
                value, trained = own.detach(), own.requires_grad
            else:
                if not move.makes and move.shape is None:
                    move.receive_kind(self._device(name))
                value = move.receive(None if own is None else own.detach(), forward=True)
                trained = move.trained
            leaves[key] = value.requires_grad_(trained)
        return leaves[key]

    def _backward(
        self,
        outputs: dict[str, Tensor],
        leaves: Mapping[tuple[str, int], Tensor],
        batch: Mapping[str, Tensor],
    ) -> Tensor:
        for move in self._back:
            if move.trained:
                move.open(forward=False)
        found = torch.zeros(())
        rank, last = self.transport.rank, self.layers.output
        for name in reversed(self._order):
            if name in self.modules:
                gradient = self._gradient(name, leaves)
                with self._around(name, "backward", self._count(name)):
                    output = outputs.pop(name)
                    if name == last:
                        start, stop = self._rows[name][rank]
                        mean = (
                            output if self._loss is None else self._loss(output, batch["targets"][start:stop])
                        )
                        loss = mean * ((stop - start) / self.plan.batch)
                        found = loss.detach()
                        loss.backward()  # type: ignore[no-untyped-call]
                    elif gradient is not None and output.requires_grad:
                        output.backward(gradient)  # type: ignore[no-untyped-call]
                for devices, one in self._waits.get(name, []):
                    self._queues[devices].ready(one)
            for source in dict.fromkeys(self.layers.sources[name]):
                self._send_back(source, name, leaves)
        return found

    def _gradient(self, name: str, leaves: Mapping[tuple[str, int], Tensor]) -> Tensor | None:
        """Gradient of the rows that this rank made of a value, from all that take it."""
        found: Tensor | None = None
        for number in self._kinds[name]:
            move, leaf = self._moves[name].get(number), leaves.get((name, number))
            own = None if leaf is None else _gradient_of(leaf)
            if move is not None:
                own = move.receive(own, forward=False) if move.trained else None
            if own is not None:
                found = own if found is None else found + own
        return found

    def _send_back(self, source: str, name: str, leaves: Mapping[tuple[str, int], Tensor]) -> None:
        """Send the gradient of a value once the first module that took it has been passed backward."""
        number = self._targets.get((source, name), 0)
        move = self._moves[source].get(number) if number else None
        if move is None or not move.takes or not move.trained or self._first[source, number] != name:
            return
        gradient = _gradient_of(leaves[source, number])
        assert gradient is not None
        move.send(gradient, forward=False)

    def _count(self, name: str) -> int:
        start, stop = self._rows[name][self.transport.rank]
        return stop - start

    def _device(self, name: str) -> torch.device:
        """Device of a module: of its parameters, or else of those of this rank."""
        own = (p for one in (self.modules[name], *self.modules.values()) for p in one.parameters())
        return next((p.device for p in own), torch.device("cpu"))

    def _orders(self) -> tuple[list[ValueMove], list[ValueMove]]:
        """This rank's moves in the order in which every rank sends them: forward, and back."""
        out = [m for moves in self._moves.values() for m in moves.values() if m.makes or m.takes]
        back = [
            self._moves[source][number]
            for name in reversed(self._order)
            for source in dict.fromkeys(self.layers.sources[name])
            if (number := self._targets.get((source, name), 0)) and self._first[source, number] == name
        ]
        return out, [move for move in back if move in out]

    def _checked(self, name: str, value: Any) -> Tensor:
        count = self._count(name)
        if self._loss is None and name == self.layers.output:
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise InputError(
                    f"module {name!r} returned {_said(value)}; expected the mean loss, a scalar, or give `loss`"
                )
            return value
        if not isinstance(value, Tensor) or value.dim() < 1 or len(value) != count:
            raise InputError(
                f"module {name!r} returned {_said(value)} for {count} rows; expected one tensor with as many rows"
            )
        return value

    def _check_modules(self) -> None:
        for name in self._order:
            split = len(self._rows[name]) > 1
            for path, module in self.layers.modules[name].named_modules():
                if split and isinstance(module, _MIXING) and module.training:
                    raise InputError(
                        f"module {name!r} has {type(module).__name__} {path!r}, which mixes the rows of a batch, on "
                        f"ranks {list(self._rows[name])}; expected one rank for it (mp), or a norm of each row such as "
                        "GroupNorm"
                    )

    def _needed(self) -> dict[tuple[str, str], int]:
        """Number of the rows in which a module takes a value, by value and module; 0: those of its maker."""
        found: dict[tuple[str, str], int] = {}
        known: dict[str, list[dict[int, tuple[int, int]]]] = {}
        for name in self._order:
            for source in self.layers.sources[name]:
                if source in self.layers.inputs:
                    continue
                rows = dict(self._rows[name])
                kinds = known.setdefault(source, [dict(self._rows[source])])
                if rows not in kinds:
                    kinds.append(rows)
                found[source, name] = kinds.index(rows)
        return found

    def _made_moves(self, transport: Transport) -> dict[str, dict[int, ValueMove]]:
        """Moves of each value by number of rows; all ranks number them alike."""
        moves: dict[str, dict[int, ValueMove]] = {name: {} for name in self._order}
        count = 0
        for (source, name), number in self._targets.items():
            if number and number not in moves[source]:
                moves[source][number] = ValueMove(
                    source, count, self._rows[source], self._rows[name], transport
                )
                count += 1
        return moves

    def _made_queues(
        self, group_of: Callable[[Sequence[int], str], Transport]
    ) -> dict[tuple[int, ...], GradientQueue]:
        """Queues of what this rank exchanges, by the ranks with which it does: each takes turns in the plan's order."""
        place = {name: number for number, name in enumerate(self._order)}
        owners, rank = self._parameter_owners(), self.transport.rank
        found: list[tuple[int, int, tuple[int, ...], SharedGradients]] = []
        groups: dict[tuple[int, ...], Transport] = {}
        for group in self.plan.groups:
            devices, first = group.devices, group.ops[0]
            if group.communication == "mp" or len(devices) == 1 or rank not in devices:
                continue
            if devices not in groups:
                # All ranks come to their groups in the order of the plan.
                groups[devices] = group_of(devices, f"deployment {list(devices)}")
            transport, tag = groups[devices], 2 * place[first]
            what = f"the gradients of {first!r}" + f" to {group.ops[-1]!r}" * (len(group.ops) > 1)
            layers = {
                path: layer
                for name in group.duplicated
                for path, layer in _linear_layers(name, self.layers.modules[name], owners[name])
            }
            made = {parameter for layer in layers.values() for parameter in layer.parameters()}
            left = {name: [p for p in owners[name] if p not in made] for name in group.ops if owners[name]}
            sets: list[SharedGradients] = []
            if layers:
                factors = FactorExchange(layers, group.rows, transport, tag, what)
                self._factors.insert(0, (first, devices, factors))
                sets.append(factors)
            if group.communication == "ps":
                by_owner: dict[int, list[nn.Parameter]] = {}
                for name, own in left.items():
                    owner = devices.index(group.owners[group.ops.index(name)])
                    by_owner.setdefault(owner, []).extend(own)
                sets += [ParameterServers(by_owner, transport, tag, what)] if by_owner else []
            elif parameters := [p for own in left.values() for p in own]:
                sets.append(RingAllReduce(parameters, transport, what))
            self._waits[first] = [(devices, one) for one in sets]
            found += [(-place[first], group.priority, devices, one) for one in sets]
        self._transports += groups.values()
        found.sort(key=lambda entry: entry[0])
        return {
            devices: GradientQueue(
                [one for *_, on, one in found if on == devices],
                [priority for _, priority, on, _ in found if on == devices],
                transport,
            )
            for devices, transport in groups.items()
        }

    def _parameter_owners(self) -> dict[str, list[nn.Parameter]]:
        """Trained parameters by the module with which their gradients are exchanged: the first that has them."""
        owner: dict[nn.Parameter, str] = {}
        found: dict[str, list[nn.Parameter]] = {name: [] for name in self._order}
        groups = self.plan.group_of
        for name in self._order:
            for part, parameter in self.layers.modules[name].named_parameters():
                if not parameter.requires_grad:
                    continue
                first = owner.setdefault(parameter, name)
                if first == name:
                    found[name].append(parameter)
                elif dict(self._rows[first]) != dict(self._rows[name]) or groups[first] is not groups[name]:
                    raise PlanError(
                        f"modules {first!r} and {name!r} share the parameter {part!r} and are in groups of their own - "
                        "at `$.groups`; expected one group for both"
                    )
        return found

    @torch.no_grad()
    def _from(self, first: int, tensor: Tensor, label: str) -> None:
        """Give all ranks a tensor of one of them, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = first
        staged = tensor.detach().cpu().reshape(-1).contiguous()
        bits = staged.view(torch.uint8)
        self.transport.complete(lambda: self.transport.group.broadcast([bits], options), label)
        tensor.detach().copy_(staged.view(tensor.shape))


def _linear_layers(
    name: str, module: nn.Module, trained: Sequence[nn.Parameter]
) -> Iterator[tuple[str, nn.Linear]]:
    """Linear layers of a module all of whose parameters are trained."""
    known = set(trained)
    for path, layer in module.named_modules():
        if type(layer) is nn.Linear and known.issuperset(layer.parameters()):
            yield f"{name}.{path}".rstrip("."), layer


def _said(value: Any) -> str:
    return f"a {list(value.shape)} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _gradient_of(leaf: Tensor) -> Tensor | None:
    if not leaf.requires_grad:
        return None
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _order(layers: LayerGraph, plan: DeploymentPlan) -> tuple[str, ...]:
    """Modules in the order in which ranks run them.

    Raises:
        PlanError: The plan has other modules than the model, or one in front of what it takes.
    """
    planned = tuple(op for group in plan.groups for op in group.ops)
    if sorted(planned) != sorted(layers.names):
        missing = sorted(set(layers.names) - set(planned)) or sorted(set(planned) - set(layers.names))
        raise PlanError(
            f"the plan by {plan.planner!r} and the model differ in the modules {missing[:8]} - at `$.groups`; make the "
            "plan again with the names of this model"
        )
    for place, name in enumerate(planned):
        behind = [s for s in layers.sources[name] if s not in layers.inputs and s not in planned[:place]]
        if behind:
            raise PlanError(
                f"the plan by {plan.planner!r} has module {name!r} before {behind[0]!r}, whose output it takes - at "
                "`$.groups`; expected the order of the forward pass"
            )
    return planned
