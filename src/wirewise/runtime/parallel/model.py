"""A user's model under a parallel plan: parameters are DTensors, a call gives the loss, backward the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils import _pytree as pytree

from wirewise.errors import InputError, PlanError
from wirewise.plans.parallel import DimPlacement, ParallelPlan
from wirewise.runtime.parallel.batches import batch_tensors
from wirewise.runtime.parallel.groups import RankGroups
from wirewise.runtime.parallel.microbatches import of_microbatch
from wirewise.runtime.parallel.parts import Placements, local_shape, part_of_mesh
from wirewise.runtime.parallel.program import CapturedStep
from wirewise.runtime.parallel.step import StepRunner
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["ParallelModel", "parallelize", "torch_placements"]


def parallelize(
    model: nn.Module,
    plan: ParallelPlan,
    step: CapturedStep,
    *,
    microbatch: CapturedStep | None = None,
    timeout_s: float = 120.0,
) -> ParallelModel:
    """The model, split over the ranks of the default process group as a plan says.

    Parameters are replaced in place by DTensors of the plan's layouts; those of other stages are gone from this rank.
    All ranks call it with the same weights, and later with the same whole batch, of which each takes its part:

        parallel = parallelize(model, plan, step)
        optimizer = torch.optim.AdamW(parallel.parameters())
        parallel(x, target).backward()
        optimizer.step()

    Args:
        model: Model that was captured; its parameters hold their values.
        plan: Plan for the captured graph.
        step: Captured training step of the whole batch, which gives the loss.
        microbatch: Captured step of one microbatch, where the plan has several. Loss and gradients are those of the
            whole batch, whatever the loss does with its rows; where no sum over microbatches gives them, as with
            statistics of a batch, the plan is refused.
        timeout_s: Seconds for a silent peer.

    Raises:
        PlanError: The plan is for another graph or other ranks, or cannot be carried out.
        InputError: Steps of one microbatch and of the batch that are not alike.
    """
    plan.check_itself()
    plan.check_graph(step.graph.digest, len(step.graph.nodes))
    world = transport_of(timeout_s=timeout_s)
    if world.world_size != plan.world_size:
        raise PlanError(
            f"the plan is for {plan.world_size} ranks, the process group has {world.world_size}; plan again, or start "
            f"{plan.world_size} ranks"
        )
    own, plan = of_microbatch(plan, step, microbatch)
    stage, _ = plan.place_of(world.rank)
    # All ranks make the groups of all stages, in one order.
    meshes = [
        DeviceMesh("cpu", torch.tensor(ranks).view(plan.mesh), mesh_dim_names=plan.mesh_names)
        for ranks in plan.ranks
    ]
    axes = [Transport(meshes[stage].get_group(a), timeout_s=timeout_s) for a in range(len(plan.mesh))]
    runner = StepRunner(own, plan, RankGroups(axes), stage, world)
    return ParallelModel(model, runner, meshes[stage], getattr(step, "batch", None))


def torch_placements(placements: Placements) -> list[Placement]:
    """Placements as torch has them.

    Raises:
        PlanError: Addends, which no parameter is.
    """
    return [_torch_placement(one) for one in placements]


def _torch_placement(one: DimPlacement) -> Any:
    if one.kind == "P":
        raise PlanError("a parameter is placed P; expected it whole or in parts")
    if one.kind == "R":
        return Replicate()
    return Shard(one.dim) if one.factor == 1 else _StridedShard(one.dim, split_factor=one.factor)


class ParallelModel(nn.Module):
    """A model whose step several ranks compute together; `parallelize` makes it.

    Parameters and buffers have the names that they had. Called with the whole batch, it gives the loss; its backward
    pass leaves gradients of the parameters' layouts. A batch that was captured as a tuple is given as arguments, one
    that was captured as a dict as a dict, or by its names, in any order.

    Args:
        model: Model whose parameters become DTensors.
        runner: This rank's part of the step.
        mesh: Ranks of this rank's stage.
        batch: Structure of the captured batch (torch's pytree); None: not known, a row of tensors.
    """

    def __init__(
        self, model: nn.Module, runner: StepRunner, mesh: DeviceMesh, batch: pytree.TreeSpec | None = None
    ) -> None:
        super().__init__()
        self._runner, self._mesh, self._batch = runner, mesh, batch
        self._split(model)
        self._parameters.update(model._parameters)
        self._buffers.update(model._buffers)
        self._modules.update(model._modules)
        # Not `self.train`: modules that the user keeps in evaluation mode stay so.
        self.training = model.training
        self._modes = {name: module.training for name, module in self.named_modules()}
        """Mode of each module when the step was captured, which holds for good."""

    def _split(self, model: nn.Module) -> None:
        """Replace each parameter, at all its places, by this rank's part, or by nothing where others have it."""
        runner = self._runner
        graph = {node.source for node in runner.graph.nodes if node.op == "parameter"}
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        for name, parameter in list(model.named_parameters()):
            number = runner.parameters.get(name)
            if number is None and name not in graph:
                continue
            found = None
            if number is not None:
                placements = runner.program.placements(number)
                local = self._local(parameter.detach(), placements)
                found = nn.Parameter(
                    DTensor.from_local(
                        local,
                        self._mesh,
                        torch_placements(placements),
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    ),
                    requires_grad=parameter.requires_grad,
                )
            for module, attribute in places[id(parameter)]:
                module._parameters[attribute] = found

    def _local(self, whole: Tensor, placements: Placements) -> Tensor:
        groups = self._runner.program.groups
        if whole.is_meta:
            # No values yet: they come with a state, or by `init`.
            shape = local_shape(whole.shape, placements, groups.mesh)
            return torch.empty(shape, dtype=whole.dtype)
        return part_of_mesh(whole, placements, groups.mesh, groups.place).clone(
            memory_format=torch.contiguous_format
        )

    def forward(self, *args: Any, **named: Any) -> Tensor:
        """Loss of a whole batch, the same on all ranks.

        Raises:
            InputError: A batch of another structure, other names or shapes than the captured one, or a mode that was
                not captured.
            PeerError: A peer is gone.
        """
        inputs = batch_tensors(self._batch, args, named)
        self._check_call(inputs)
        named = dict(self.named_parameters())
        names = list(self._runner.parameters)
        trained = [name for name in names if named[name].requires_grad]
        if torch.is_grad_enabled() and trained:
            step: Any = _Step
            loss: Tensor = step.apply(self, trained, inputs, *(named[name] for name in trained))
            return loss
        return self.carry_out(inputs, backward=False)[0]

    def _check_call(self, inputs: Sequence[Any]) -> None:
        """Raise InputError for what the captured step would ignore."""
        if others := [type(one).__name__ for one in inputs if not isinstance(one, Tensor)]:
            raise InputError(
                f"got a batch with {', '.join(others)}; expected tensors in the order of the captured step's inputs"
            )
        changed = [name for name, module in self.named_modules() if module.training != self._modes.get(name)]
        if changed:
            mode = "training" if self._modes.get(changed[0]) else "evaluation"
            raise InputError(
                f"{changed[0] or 'the model'} was captured in {mode} mode and is in the other one now (train() or "
                f"eval(), {len(changed)} modules); the step runs as it was captured. Expected the mode of the "
                "capture: evaluate a plain model, with this one's weights, or capture and plan another step"
            )
        if autocast := [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]:
            raise InputError(
                f"the model was called under torch.autocast({autocast[0]!r}), which a captured step ignores; expected "
                "autocast inside the model's forward, where it is captured"
            )

    def carry_out(self, inputs: Sequence[Tensor], *, backward: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss, and this rank's parts of the gradients."""
        named = dict(self.named_parameters())
        buffers = dict(self.named_buffers())
        groups, program = self._runner.program.groups, self._runner.program
        state = {name: _part(named[name]) for name in self._runner.parameters}
        for name, number in self._runner.buffers.items():
            state[name] = part_of_mesh(buffers[name], program.placements(number), groups.mesh, groups.place)
        loss, gradients, changed = self._runner(inputs, state, backward=backward)
        for name, value in changed.items():
            buffers[name].copy_(value)
        return loss, gradients

    def as_parameter(self, name: str, local: Tensor) -> DTensor:
        """This rank's part of a gradient as a DTensor of the parameter's layout."""
        like: Any = self.get_parameter(name)
        # The layout is the parameter's own: `DTensor.from_local` would work it out anew, at a cost that is felt.
        return DTensor(local, like._spec, requires_grad=False)  # type: ignore[call-arg]


def _part(parameter: Any) -> Tensor:
    found: Tensor = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    return found.detach()


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, model: ParallelModel, names: list[str], inputs: Sequence[Tensor], *_: Tensor
    ) -> Tensor:
        loss, gradients = model.carry_out(inputs, backward=True)
        ctx.gradients = [
            model.as_parameter(name, gradients[name]) if name in gradients else None for name in names
        ]
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise InputError(
                "backward() came twice for one call of the model, which hands its gradients on once; call the model "
                "again, or add up what is back-propagated"
            )
        scale = float(grad)
        return None, None, None, *(one if one is None or scale == 1.0 else one * scale for one in gradients)
