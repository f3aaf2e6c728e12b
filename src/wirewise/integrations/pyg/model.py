"""Distributed copies of a user's modules."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.nn import MessagePassing

from wirewise.errors import InputError
from wirewise.integrations.pyg import losses
from wirewise.integrations.pyg.budget import Interval
from wirewise.integrations.pyg.convolution import HaloConvolution
from wirewise.integrations.pyg.gradients import GradientSum
from wirewise.integrations.pyg.norms import depends_on_all_nodes, spread
from wirewise.integrations.pyg.outputs import OutputTensor, strip_tracking, track_outputs
from wirewise.integrations.pyg.own_rows import InsideModel, plain_rows
from wirewise.integrations.pyg.probe import prove
from wirewise.integrations.pyg.recomputation import in_back_propagation
from wirewise.integrations.pyg.view import GraphView
from wirewise.integrations.pyg.watch import CheckInterval, ModuleWatch
from wirewise.integrations.pyg.wrapping import refuse_wrapped, refuse_wrappers
from wirewise.log import logger, set_position

if TYPE_CHECKING:
    from wirewise.integrations.pyg.job import Job

__all__ = ["Bundle", "distributed_copies"]

_log = logger("graph")
_EVALUATIONS = 16
"""Calls after training that all compare ranks, and distance of later ones; a comparison is one message of 8 bytes."""


def distributed_copies(models: Sequence[nn.Module], job: Job, view: GraphView, first_layer: int) -> Bundle:
    """Copy `models` to modules that share their parameters and run on all ranks; the originals are unchanged.

    Args:
        models: Modules of the user; at least one holds a convolution.
        job: Job of the distributed graph.
        view: Local part and messages of this rank.
        first_layer: Index of the first convolution's exchange.

    Raises:
        InputError: No model has a convolution, or a module cannot run distributed.
    """
    for model in models:
        refuse_wrapped(model)
    # One copy of all keeps modules that they share.
    whole = _twin(models[0] if len(models) == 1 else nn.ModuleList(models))
    twins = [whole] if len(models) == 1 else list(whole)  # type: ignore[call-overload]
    convolutions = [name for name, module in whole.named_modules() if isinstance(module, MessagePassing)]
    if not convolutions:
        raise InputError(
            f"{type(models[0]).__name__} has no torch_geometric.nn.MessagePassing module; nothing can be distributed. "
            "Give a head together with the model that it belongs to: job.distribute(model, head)"
        )
    for twin in twins:
        if isinstance(twin, MessagePassing):
            raise InputError(
                f"{type(twin).__name__} is a convolution itself; expected a module that holds convolutions, such as "
                "torch_geometric.nn.Sequential"
            )
    _exchange(whole, convolutions, view, first_layer)
    return Bundle(whole, twins, job, view, len(convolutions))


def _exchange(whole: nn.Module, convolutions: list[str], view: GraphView, first_layer: int) -> None:
    """Put exchanges under the convolutions, and sums over ranks into norms over all nodes."""
    halo = {
        name: HaloConvolution(whole.get_submodule(name), name, first_layer + n, view)
        for n, name in enumerate(convolutions)
    }
    for name, module in whole.named_modules():
        if depends_on_all_nodes(module):
            spread(module, name, view, of_edges=any(name.startswith(conv + ".") for conv in convolutions))
    for name, conv in halo.items():
        whole.get_submodule(name).forward = conv  # type: ignore[assignment]


def _twin(model: nn.Module) -> nn.Module:
    """A copy of the modules that holds the same parameters and buffers."""
    shared: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    try:
        return copy.deepcopy(model, shared)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied ({error}); expected a module that copy.deepcopy takes"
        ) from error


class Bundle:
    """Modules distributed in one call, whose gradients are summed together.

    Args:
        whole: The copy of the module, or the list of copies.
        twins: The copies in it, one for each user module.
        job: Job of the distributed graph.
        view: Local part and messages of this rank.
        convolutions: Number of convolutions.
    """

    def __init__(
        self, whole: nn.Module, twins: Sequence[nn.Module], job: Job, view: GraphView, convolutions: int
    ) -> None:
        self.whole, self.job, self.view, self.convolutions = whole, job, view, convolutions
        self.number = len(job._bundles)
        job.transport.broadcast(self.state())
        self.gradients = GradientSum(
            whole, job.transport, job.exchange.mode.gradient_bits, job.proof_interval
        )
        self.steps = 0
        """Training forwards with exchanges so far."""
        self.members = [_Member(twin, self) for twin in twins]
        for module in whole.modules():
            if module is not whole and "_wirewise_step" not in vars(module):
                module.register_forward_pre_hook(self._inside_only)
        for member in self.members:
            member.watch = ModuleWatch(member.twin)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        return dict([*self.whole.named_parameters(), *self.whole.named_buffers()])

    def _inside_only(self, module: nn.Module, _: Any) -> None:
        if not self.view.inside and not in_back_propagation():
            raise InputError(
                f"a {type(module).__name__} of a distributed model was called outside the model's forward, where its "
                "gradient could not be weighed among ranks; call the model itself, or the one that it came from"
            )

    def begin(self, training: bool) -> None:
        """Start an epoch of the exchange."""
        exchange = self.job.exchange
        exchange.training = training
        if training:
            self.job.bits.before_epoch(self.steps)
            exchange.epoch = self.steps
            set_position(step=self.steps)
            self.steps += 1


def _is_given(value: Any) -> bool:
    """Whether an argument is a tensor that no model computed; walks of nests take 50 microseconds."""
    return isinstance(value, Tensor) and type(value) is not OutputTensor and not value.requires_grad


class _Member:
    """Takes the place of one copy's forward: proves that it mixes no rows, again when it changes, and runs it."""

    watch: ModuleWatch

    def __init__(self, twin: nn.Module, bundle: Bundle) -> None:
        self.twin, self.bundle, self.view = twin, bundle, bundle.view
        self.exchanges = any(isinstance(module, MessagePassing) for module in twin.modules())
        self.proven: set[bool] = set()
        """Modes (training or not) in which rows were proven not to mix since the last change."""
        self.calls = {True: 0, False: 0}
        self.intervals = {mode: bundle.job.proof_interval() for mode in (True, False)}
        self.evaluations = 0
        """Calls since the last one that trains."""
        self.sequences = CheckInterval(Interval(1 << 62))
        """Sequences of exchanges of one forward."""
        # The class's own forward, not a method bound to this copy: torch.func calls it with other parameters.
        self.kind = type(twin)
        self.call = self.kind.forward
        object.__setattr__(twin, "_wirewise_step", self)
        twin.forward = torch._dynamo.disable(functools.partial(self.forward))  # type: ignore[method-assign]
        refuse_wrappers(twin)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Output of the user's model for own nodes."""
        if self.view.inside:
            return self.call(self.twin, *args, **kwargs)
        if in_back_propagation():
            raise InputError(
                "a distributed model was called inside a back-propagation, as by gradient checkpointing around it; "
                "expected torch.utils.checkpoint inside the model, around its layers"
            )
        bundle, gradients = self.bundle, self.bundle.gradients
        if gradients.budget.due:
            with gradients.budget.spending():
                gradients.guard.check()
        if type(self.twin) is not self.kind:
            raise InputError(
                f"the distributed {self.kind.__name__} became a {type(self.twin).__name__}, as fully_shard and "
                "replicate of torch.distributed make it; expected no other wrapper: gradients are summed over "
                "ranks already"
            )
        fed: list[Any] = []
        # Before anything asks them something: a property of theirs takes 3 microseconds.
        args = tuple(map(plain_rows, args))
        if kwargs:
            kwargs = {name: plain_rows(value) for name, value in kwargs.items()}
        if not all(map(_is_given, (*args, *kwargs.values()))):
            args, kwargs = pytree.tree_map(
                lambda value: self._admit(value, fed), strip_tracking((args, kwargs))
            )
        training = self.twin.training and torch.is_grad_enabled()
        self.view.inside, self.view.with_gradients = True, torch.is_grad_enabled()
        try:
            with InsideModel((*args, *kwargs.values())):
                out = self._run(args, kwargs, training)
        except Exception as error:
            bundle.job.transport.leave(error, "the forward of the model")
            raise
        finally:
            self.view.inside = False
        contract = bundle.job.contract
        return track_outputs(
            losses.attach_contract(out, losses.Output(contract, contract.train_mask, gradients, fed))
        )

    def _run(self, args: Any, kwargs: Any, training: bool) -> Any:
        """Run the user's model inside the graph's view."""
        if self._is_proof_due(args, kwargs, training):
            with self.bundle.gradients.budget.exclude():
                self._prove(args, kwargs)
        elif not training:
            self._compare_replicas()
        self.evaluations = 0 if training else self.evaluations + 1
        if self.exchanges:
            self.bundle.begin(training)
        self.view.sequence.clear()
        out = self.call(self.twin, *args, **kwargs)
        self._settle(training)
        return out

    def _admit(self, value: Any, fed: list[Any]) -> Any:
        """An argument, tied to the model whose output it was computed from."""
        if not isinstance(value, Tensor) or not torch.is_grad_enabled() or not value.requires_grad:
            return value
        value = losses.feed(value, self.bundle.job.contract)
        fed.append(value.grad_fn)
        return value

    def _is_proof_due(self, args: Any, kwargs: Any, training: bool) -> bool:
        mode, gradients = self.twin.training, self.bundle.gradients
        if gradients.wants_proof or (self._looks(training) and self._changed(args, kwargs)):
            self.proven.clear()
            gradients.budget.restart()
        due = self.intervals[mode].due(self.calls[mode], force=mode not in self.proven)
        self.calls[mode] += 1
        return due

    def _looks(self, training: bool) -> bool:
        """Whether to look in this call; evaluations are not counted as steps, and all are looked at."""
        budget = self.bundle.gradients.budget
        return not training or budget.looks or budget.due

    def _changed(self, args: Any, kwargs: Any) -> bool:
        budget = self.bundle.gradients.budget
        with budget.spending() if budget.due else nullcontext():
            module = self.watch.changed(briefly=not budget.due)
            return self.watch.arguments_changed(args, kwargs) or module

    def _compare_replicas(self) -> None:
        """Compare ranks in evaluation, where no back-propagation does: often after training, then now and then."""
        if self.evaluations < _EVALUATIONS or self.evaluations % _EVALUATIONS == 0:
            self.bundle.gradients.replicas.compare(self.evaluations, "before an evaluation")

    def _prove(self, args: Any, kwargs: Any) -> None:
        mode = self.twin.training
        if self.exchanges:
            self.bundle.job.exchange.training = False
        self.bundle.gradients.replicas.check("before the proof that rows do not mix")
        _log.debug("proves that %s mixes no rows", self.kind.__name__)
        prove(self.twin, self.view, args, kwargs, whole=mode not in self.proven)
        self.proven.add(mode)

    def _settle(self, training: bool) -> None:
        """Look at what the forward changed itself, and at its exchanges."""
        gradients = self.bundle.gradients
        changed = False
        if gradients.budget.is_settling:
            # In other steps the next forward that looks notices, which takes it for a change of the script.
            with gradients.budget.spending():
                changed = self.watch.detect_changes()
        if training and not gradients.budget.looks:
            gradients.wants_proof = changed
            return
        sequence = tuple(self.view.sequence)
        new = self.sequences.due(sequence) and self.sequences.calls > 1
        if training:
            gradients.exchanges = (
                gradients.exchanges * 1_000_003 + hash(sequence) + 1
            ) & 0x7FFF_FFFF_FFFF_FFFF
            gradients.wants_proof = changed or new
