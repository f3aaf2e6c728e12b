"""User's model under a parallel plan: parameters are DTensors, a call returns the loss, backward the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils import _pytree as pytree

from wirewise.errors import InputError, PlanError
from wirewise.plans.parallel import DimPlacement, ParallelPlan
from wirewise.runtime.exact_dtensors import ExactDTensor
from wirewise.runtime.parallel.batches import batch_tensors
from wirewise.runtime.parallel.checkpoints import checkpointable
from wirewise.runtime.parallel.evaluation import Evaluation
from wirewise.runtime.parallel.gradients import clip_gradients
from wirewise.runtime.parallel.groups import RankGroups
from wirewise.runtime.parallel.microbatches import of_microbatch
from wirewise.runtime.parallel.parts import Placements, local_shape, part_of_mesh
from wirewise.runtime.parallel.program import CapturedStep
from wirewise.runtime.parallel.rows import rows_of_rank, with_rows
from wirewise.runtime.parallel.stage_norms import scope_of_stage
from wirewise.runtime.parallel.step import StepRunner
from wirewise.runtime.stage_gradients import GradientScope
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
    """Shard a model over the ranks of the default process group under a plan.

    Parameters are replaced in place by DTensors with the plan's layouts; those of other stages are removed from this
    rank. All ranks call it with the same weights, and later with the same whole batch, of which each uses its part:

        parallel = parallelize(model, plan, step)
        optimizer = torch.optim.AdamW(parallel.parameters())
        parallel(x, target).backward()
        optimizer.step()

    Args:
        model: Captured model, with initialised parameters.
        plan: Plan for the captured graph.
        step: Captured training step of the whole batch, which returns the loss.
        microbatch: Captured step of one microbatch, if the plan has several. Loss and gradients are those of the
            whole batch; if no sum over microbatches gives them, as with batch statistics, the plan is refused.
        timeout_s: Seconds after which an unresponsive peer counts as hung.

    Raises:
        PlanError: The plan is for another graph or other ranks, or cannot be executed.
        InputError: The steps of microbatch and batch do not match.
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
    """Convert placements to torch's.

    Raises:
        PlanError: There are partial sums, which parameters cannot be.
    """
    return [_torch_placement(one) for one in placements]


def _torch_placement(one: DimPlacement) -> Any:
    if one.kind == "P":
        raise PlanError("a parameter is placed P; expected it whole or in parts")
    if one.kind == "R":
        return Replicate()
    return Shard(one.dim) if one.factor == 1 else _StridedShard(one.dim, split_factor=one.factor)


class ParallelModel(nn.Module):
    """Model whose step is computed by several ranks together, made by `parallelize`.

    In evaluation mode (`eval()`) it is the plain model: called as that one is, with a batch of any size, it gives its
    output, such as logits, without gradients. Every rank computes all of it, with parameters gathered block by block.

    Parameters and buffers keep their names. Called with the whole batch, it returns the loss; its backward pass
    computes gradients in the parameters' layouts. A batch captured as a tuple is passed as positional arguments, one
    captured as a dict as a dict, or as keyword arguments.

    Args:
        model: Model whose parameters become DTensors.
        runner: This rank's part of the step.
        mesh: Ranks of this rank's stage.
        batch: Structure of the captured batch (torch's pytree). None for positional tensors.
    """

    def __init__(
        self, model: nn.Module, runner: StepRunner, mesh: DeviceMesh, batch: pytree.TreeSpec | None = None
    ) -> None:
        super().__init__()
        self._runner, self._mesh, self._batch = runner, mesh, batch
        self._scope = scope_of_stage(self, runner)
        places = self._split(model)
        self._names = list(places)
        self._evaluation = Evaluation(model, runner, places)
        self._parameters.update(model._parameters)
        self._buffers.update(model._buffers)
        self._modules.update(model._modules)
        self.register_state_dict_post_hook(_saved_by_shards)
        # Not `self.train`: modules that the user keeps in evaluation mode stay so.
        self.training = model.training
        self._modes = {name: module.training for name, module in self.named_modules()}
        """Mode of each module when the step was captured, which holds for good."""

    def _split(self, model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
        """Replace each parameter, at all its places, by this rank's part, or by nothing where others have it.

        Returns:
            The places of each.
        """
        runner = self._runner
        graph = {node.source for node in runner.graph.nodes if node.op == "parameter"}
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name))
        split = {}
        for name, parameter in list(model.named_parameters()):
            number = runner.parameters.get(name)
            if number is None and name not in graph:
                continue
            found = None
            if number is not None:
                placements = runner.program.placements(number)
                local = self._local(parameter.detach(), placements)
                part = DTensor.from_local(
                    local,
                    self._mesh,
                    torch_placements(placements),
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
                exact = ExactDTensor.track(part, self._scope, (name,))
                found = nn.Parameter(exact, requires_grad=parameter.requires_grad)
                found.register_post_accumulate_grad_hook(partial(_track, self._scope, name))
            split[name] = places[id(parameter)]
            for module, attribute in split[name]:
                module._parameters[attribute] = found
        return split

    def _local(self, whole: Tensor, placements: Placements) -> Tensor:
        groups = self._runner.program.groups
        if whole.is_meta:
            # No values yet: they come with a state, or by `init`.
            shape = local_shape(whole.shape, placements, groups.mesh)
            return torch.empty(shape, dtype=whole.dtype)
        return part_of_mesh(whole, placements, groups.mesh, groups.place).clone(
            memory_format=torch.contiguous_format
        )

    def forward(self, *args: Any, **named: Any) -> Any:
        """Loss of a whole batch, the same on all ranks; in evaluation mode the output of the plain model.

        Raises:
            InputError: The batch has another structure, other names or shapes than the captured one, or the mode was
                not captured.
            PeerError: A peer is gone.
        """
        if any(self._modes.values()) and not any(module.training for module in self.modules()):
            held = dict(self.named_parameters())
            parts = {name: _part(held[name]) if name in held else None for name in self._names}
            return self._evaluation(parts, args, named)
        return self._loss(batch_tensors(self._batch, args, named))

    def own_rows(self) -> Tensor:
        """Rows of the captured batch used by this rank, ascending, for `of_own_rows`; empty if its stage uses none.

        Raises:
            PlanError: The step uses other rows on a rank; pass the whole batch to every rank then.
        """
        return rows_of_rank(self._runner)

    def of_own_rows(self, *args: Any, **named: Any) -> Tensor:
        """Loss of a whole batch of which each rank passes its own rows, in the order of `own_rows`.

        Raises:
            InputError: Raised by `forward`, or the number of rows is wrong.
            PlanError: Raised by `own_rows`.
            PeerError: A peer is gone.
        """
        inputs = batch_tensors(self._batch, args, named)
        return self._loss(with_rows(self._runner, inputs, self.own_rows()))

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the gradients of all ranks and stages to a norm, as `torch.nn.utils.clip_grad_norm_` in one process.

        Torch's function gives the same result if all ranks call it with all parameters.

        Args:
            max_norm: Maximum norm of all gradients together.
            norm_type: Exponent of the norm, above 0; infinity for the maximum norm.
            error_if_nonfinite: Whether to raise if the norm is not finite.

        Returns:
            The norm before clipping, the same on all ranks.

        Raises:
            InputError: The norm is invalid, or not finite and that is an error.
            PeerError: A peer is gone.
        """
        return clip_gradients(self, self.world, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite)

    @property
    def world(self) -> Transport:
        """Messages between all ranks of the plan."""
        world = self._runner.world
        assert world is not None
        return world

    def _loss(self, inputs: Sequence[Any]) -> Tensor:
        self._check_call(inputs)
        named = dict(self.named_parameters())
        names = list(self._runner.parameters)
        trained = [name for name in names if named[name].requires_grad]
        if torch.is_grad_enabled() and trained:
            step: Any = _Step
            loss: Tensor = step.apply(self, trained, inputs, *(named[name] for name in trained))
            return loss
        return self.execute(inputs, backward=False)[0]

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
                "capture, or evaluation mode of all modules; else capture and plan another step"
            )
        if autocast := [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]:
            raise InputError(
                f"the model was called under torch.autocast({autocast[0]!r}), which a captured step ignores; expected "
                "autocast inside the model's forward, where it is captured"
            )

    def execute(self, inputs: Sequence[Tensor], *, backward: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss, and this rank's shards of the gradients."""
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
        """This rank's shard of a gradient, as a DTensor in the parameter's layout."""
        like: Any = self.get_parameter(name)
        # The layout is the parameter's own: `DTensor.from_local` would work it out anew, at a cost that is felt.
        return DTensor(local, like._spec, requires_grad=False)  # type: ignore[call-arg]


def _track(scope: GradientScope | None, name: str, parameter: Tensor) -> None:
    """Let a gradient know its parameter: autograd adds up torch's own DTensors."""
    if parameter.grad is not None:
        parameter.grad = ExactDTensor.track(parameter.grad, scope, (name,))


def _saved_by_shards(_model: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
    checkpointable(state)


def _part(parameter: Any) -> Tensor:
    found: Tensor = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    return found.detach()


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, model: ParallelModel, names: list[str], inputs: Sequence[Tensor], *_: Tensor
    ) -> Tensor:
        loss, gradients = model.execute(inputs, backward=True)
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
