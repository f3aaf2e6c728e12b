"""Gradients of a loss over the nodes of all ranks.

A plain loss of the user's is a mean over this rank's training nodes (`loss_graph` and `loss_rows` look whether it is).
The gradient that reaches the output is weighed by the rank's share of training nodes, and gradients of parameters are
averaged over ranks, so that a penalty on parameters counts once. `global_sum` undoes the weight, and so is right over
any nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.integrations.pyg.loss_graph import LossGraph
from wirewise.runtime import full_graph

if TYPE_CHECKING:
    from wirewise.integrations.pyg.examination import Examination

__all__ = ["LossContract", "Output", "feed", "global_sum", "weigh"]


@dataclass
class LossContract:
    """What a plain loss of this rank means.

    Args:
        train_mask: Own training nodes, bool [own].
        share: This rank's share of the training nodes of all ranks, times the number of ranks; 1 where it has none.
        count: Own training nodes.
        transport: Messages between the ranks.
    """

    train_mask: Tensor
    share: float
    count: int
    transport: full_graph.Transport

    @property
    def trains(self) -> bool:
        """Whether this rank has training nodes."""
        return self.count > 0

    @staticmethod
    def of(train_mask: Tensor, transport: full_graph.Transport) -> LossContract:
        """Count the training nodes; a collective call."""
        own = int(train_mask.sum())
        total = torch.tensor([own])
        transport.all_reduce(total, "number of training nodes")
        share = own * transport.world_size / max(int(total), 1)
        return LossContract(train_mask.clone(), share if own else 1.0, own, transport)


class Arrival(Protocol):
    """Gathers the gradients of parameters in a back-propagation."""

    def arrive(self, output: Output, grad: Tensor) -> None:
        """A gradient has reached an output; a collective call."""


@dataclass
class Output:
    """One call of a distributed model: which rows losses may touch, and what its backward pass begins."""

    contract: LossContract
    rows: Tensor
    """Own rows of which a gradient may be other than zero, bool [own]."""
    gradients: Arrival
    fed_by: list[Any] = field(default_factory=list)
    """Nodes of inputs that other distributed models computed."""
    declared: bool = False
    """`Job.mean` or `Job.sum` read it."""
    fed: bool = False
    """Another distributed model reads it."""
    examination: Examination | None = None
    """The loss whose back-propagation goes on."""

    def fault(self, grad: Tensor) -> tuple[int, bool]:
        """0 or the code of the fault that the gradient of this rank shows, and whether it misses training nodes."""
        if bool(grad.isnan().any()) and not self.contract.trains and self.declared:
            return 2, False
        touched = grad.flatten(1).ne(0).any(1) if grad.dim() > 1 else grad.ne(0)
        misses = not (self.declared or self.fed) and int(touched.sum()) < self.contract.count
        return int(bool((touched & ~self.rows).any())), misses


def weigh(out: Any, output: Output) -> Any:
    """Tie every tensor of real numbers in `out` to the contract.

    Raises:
        InputError: A tensor does not have a row for each own node.
    """

    def tie(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        if value.dim() == 0 or value.shape[0] != len(output.rows):
            raise InputError(
                f"the model returned a tensor of shape {list(value.shape)}; expected a row for each of the "
                f"{len(output.rows)} own nodes"
            )
        return _Weigh.apply(value, output)

    tied = pytree.tree_map(tie, out)
    leaves = pytree.tree_leaves(tied)
    if any(not isinstance(leaf, (Tensor, int, float, str, type(None))) for leaf in leaves):
        raise InputError(
            f"the model returned a {type(out).__name__}; expected tensors, or tuples, lists or dicts of them"
        )
    return tied


class _Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, output: Output) -> Tensor:
        ctx.wirewise_output = output
        return out.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        output: Output = ctx.wirewise_output
        contract = output.contract
        if not contract.trains and not output.declared:
            # The mean over no nodes is not a number, and neither is its gradient.
            grad = torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)
        output.gradients.arrive(output, grad)
        return grad * contract.share, None


def feed(value: Tensor, contract: LossContract) -> Tensor:
    """An output of one distributed model as the input of another one, whose gradient is weighed already.

    Raises:
        InputError: It was computed from other things that require a gradient.
    """
    graph = LossGraph.of(value.grad_fn) if value.grad_fn is not None else LossGraph()
    if (
        not graph.outputs
        or graph.reaches.get(value.grad_fn, 0) != 1
        or any(output.contract is not contract for _, output in graph.outputs)
    ):
        raise InputError(
            "the distributed model got a tensor that requires a gradient, which no rank could weigh; put the module "
            "that made it into the model, or distribute both in one call: job.distribute(model, head)"
        )
    for _, output in graph.outputs:
        output.fed = True
        output.rows = torch.ones_like(output.rows)
    return _Feed.apply(value, contract.share)


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, share: float) -> Tensor:
        ctx.share = share
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.share, None


def global_sum(local: Tensor, rows: Tensor | None, contract: LossContract) -> Tensor:
    """The sum of one number over all ranks, equal on all of them, whose gradient counts every rank's part once.

    Args:
        local: This rank's part, a scalar computed from outputs of distributed models.
        rows: Own nodes that it may depend on, bool [own]; None: all.
        contract: How the outputs' gradients are weighed.

    Raises:
        InputError: It depends on parameters of a distributed model other than through its outputs.
    """
    for output in _outputs_of(local):
        output.declared = True
        output.rows = torch.ones_like(output.rows) if rows is None else output.rows | rows
    return _GlobalSum.apply(local, contract)


def _outputs_of(value: Tensor) -> list[Output]:
    """The calls of distributed models that `value` was computed from, found in the autograd graph."""
    if value.grad_fn is None and not value.requires_grad:
        return []
    graph = LossGraph.of(value.grad_fn) if value.grad_fn is not None else LossGraph(unknown=[value])
    if graph.sums:
        raise InputError(
            "values of job.mean or job.sum depend on the result of another job.mean or job.sum, whose gradient would "
            "be that of one rank; use its detach(), or the two results in one expression"
        )
    for variable in [*graph.unknown, *graph.known]:
        what = (
            "that no distributed model holds"
            if graph.unknown
            else "of a distributed model outside its forward"
        )
        raise InputError(
            f"values of job.mean or job.sum depend on parameters {what} ({list(variable.shape)}), whose gradients "
            "would not be summed over ranks; use them inside the forward of the model that job.distribute gets "
            "(job.distribute(model, head) takes several), and add penalties on parameters to the loss as they are"
        )
    return [output for _, output in graph.outputs]


class _GlobalSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, contract: LossContract) -> Tensor:
        # The output weighs by the share, and gradients of parameters are averaged.
        ctx.factor = contract.transport.world_size / contract.share
        ctx.wirewise_global = True
        total = local.detach().clone()
        contract.transport.all_reduce(total, "sum of a loss")
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None
