"""Gradients of a loss over the nodes of all ranks.

A plain loss of the user's is a mean over this rank's training nodes. The gradient that reaches the output is weighed by
the rank's share of training nodes, and gradients of parameters are averaged over ranks, so that a penalty on parameters
counts once. `global_sum` undoes the weight, and so is right over any nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.runtime import full_graph

__all__ = ["LossContract", "Output", "global_sum", "weigh"]


@dataclass
class LossContract:
    """What a plain loss of this rank means.

    Args:
        train_mask: Own training nodes, bool [own].
        share: This rank's share of the training nodes of all ranks, times the number of ranks; 1 where it has none.
        trains: Whether this rank has training nodes.
        transport: Messages between the ranks.
    """

    train_mask: Tensor
    share: float
    trains: bool
    transport: full_graph.Transport

    @staticmethod
    def of(train_mask: Tensor, transport: full_graph.Transport) -> LossContract:
        """Count the training nodes; a collective call."""
        own = int(train_mask.sum())
        total = torch.tensor([own])
        transport.all_reduce(total, "number of training nodes")
        share = own * transport.world_size / max(int(total), 1)
        return LossContract(train_mask.clone(), share if own else 1.0, own > 0, transport)


@dataclass
class Output:
    """One call of a distributed model: which rows losses may touch, and what its backward pass begins."""

    contract: LossContract
    rows: Tensor
    """Own rows of which a gradient may be other than zero, bool [own]."""
    begin: Callable[[], None]
    declared: bool = False
    """`Job.mean` or `Job.sum` read it."""

    def fault(self, grad: Tensor) -> int:
        """0, or which of `_FAULTS` the gradient of this rank shows."""
        if bool(grad.isnan().any()) and not self.contract.trains and self.declared:
            return 2
        touched = grad.flatten(1).ne(0).any(1) if grad.dim() > 1 else grad.ne(0)
        return int(bool((touched & ~self.rows).any()))


_FAULTS = {
    1: "the loss of rank {rank} depends on outputs of nodes outside its train_mask, which a plain loss cannot weigh "
    "among ranks. Expected a mean over all own training nodes; make other losses from values of each node by "
    "job.mean(values, mask) or job.sum(values, mask)",
    2: "the loss of rank {rank}, which has no training nodes, is not a number in its plain part; make every part of "
    "the loss by job.mean(values, mask) or job.sum(values, mask)",
}


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
        _agree(output.fault(grad), contract.transport)
        output.begin()
        return grad * contract.share, None


def _agree(fault: int, transport: full_graph.Transport) -> None:
    found = torch.zeros(transport.world_size, dtype=torch.int64)
    found[transport.rank] = fault
    transport.all_reduce(found, "whether the losses fit")
    for rank, code in enumerate(found.tolist()):
        if code:
            raise InputError(_FAULTS[code].format(rank=rank))


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
    found, seen, left = [], set(), [value.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        output = getattr(node, "wirewise_output", None)
        if output is not None:
            found.append(output)
            continue
        variable = getattr(node, "variable", None)
        if variable is not None:
            distributed = getattr(variable, "_wirewise_distributed", False)
            what = (
                "of a distributed model outside its forward"
                if distributed
                else "that no distributed model holds"
            )
            raise InputError(
                f"values of job.mean or job.sum depend on parameters {what} ({list(variable.shape)}), whose gradients "
                "would not be summed over ranks; use them inside the forward of the model that job.distribute gets, "
                "and add penalties on parameters to the loss as they are"
            )
        left += [following for following, _ in node.next_functions]
    return found


class _GlobalSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, contract: LossContract) -> Tensor:
        # The output weighs by the share, and gradients of parameters are averaged.
        ctx.factor = contract.transport.world_size / contract.share
        total = local.detach().clone()
        contract.transport.all_reduce(total, "sum of a loss")
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None
