"""Gradients of a loss over the nodes of all ranks.

A plain user loss is a mean over this rank's training nodes (checked by `loss_graph` and `loss_rows`). The gradient
that reaches the output is weighted by the rank's fraction of training nodes, and gradients of parameters are averaged
over ranks, so that a penalty on parameters counts once. `global_sum` undoes the weight, and is therefore right for
any nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.integrations.pyg.loss_graph import LossGraph
from wirewise.runtime import full_graph

if TYPE_CHECKING:
    from wirewise.integrations.pyg.examination import Examination

__all__ = ["LossContract", "Output", "attach_contract", "feed", "global_sum"]


@dataclass
class LossContract:
    """Semantics of a plain loss of this rank.

    Args:
        train_mask: Own training nodes, bool [own].
        share: This rank's fraction of the training nodes of all ranks, times the number of ranks; 1 if it has none.
        count: Number of own training nodes.
        transport: Messages between the ranks.
    """

    train_mask: Tensor
    share: float
    count: int
    transport: full_graph.Transport

    @cached_property
    def train_bits(self) -> int:
        """The training nodes as one number, one byte per node."""
        return _bits(self.train_mask)

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
    """Handler that gathers the gradients of parameters in a back-propagation."""

    def arrive(self, output: Output, grad: Tensor) -> None:
        """Handle a gradient that has reached an output; a collective call."""

    def open(self, output: Output, number: int) -> None:
        """Register a computed output, with its operation's number in autograd order."""


@dataclass(eq=False)
class Output:
    """One call of a distributed model: rows that losses may read, and the handler of its backward pass."""

    contract: LossContract
    rows: Tensor
    """Own rows of which a gradient may be other than zero, bool [own]."""
    gradients: Arrival
    fed_by: list[Any] = field(default_factory=list)
    """Nodes of inputs that other distributed models computed."""
    declared: bool = False
    """Whether `Job.mean` or `Job.sum` reads it."""
    fed: bool = False
    """Whether another distributed model reads it."""
    examination: Examination | None = None
    """Examination of the loss whose backward pass is running."""

    def fault(self, grad: Tensor) -> tuple[int, bool]:
        """Fault code of this rank's gradient (0 if none), and whether it misses training nodes."""
        if self.declared and not self.contract.trains and bool(grad.isnan().any()):
            return 2, False
        touched = _bytes(grad.flatten(1).any(1) if grad.dim() > 1 else grad.ne(0))
        misses = not (self.declared or self.fed) and touched.count(1) < self.contract.count
        allowed = self.contract.train_bits if self.rows is self.contract.train_mask else _bits(self.rows)
        return int(bool(int.from_bytes(touched) & ~allowed)), misses


def _bytes(mask: Tensor) -> bytes:
    # Python compares them: torch and NumPy take 20 to 50 microseconds for what they do once a step.
    return mask.cpu().numpy().tobytes()


def _bits(mask: Tensor) -> int:
    return int.from_bytes(_bytes(mask))


def attach_contract(out: Any, output: Output) -> Any:
    """Attach the contract to every floating-point tensor in `out`.

    Raises:
        InputError: A tensor does not have one row per own node.
    """

    def tie(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        if value.dim() == 0 or value.shape[0] != len(output.rows):
            raise InputError(
                f"the model returned a tensor of shape {list(value.shape)}; expected a row for each of the "
                f"{len(output.rows)} own nodes"
            )
        result = _Weigh.apply(value, output)
        if result.grad_fn is not None:
            output.gradients.open(output, result.grad_fn._sequence_nr())
        return result

    if isinstance(out, Tensor):
        return tie(out)
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
    """Use an output of one distributed model as the input of another, without weighting its gradient twice.

    Raises:
        InputError: It also depends on other values that require a gradient.
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
    """Sum a number over all ranks, equal on all of them, with the gradient of every rank's part counted once.

    Args:
        local: This rank's part, a scalar computed from outputs of distributed models.
        rows: Own nodes that it may depend on, bool [own]. Defaults to all.
        contract: Weights of the outputs' gradients.

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
