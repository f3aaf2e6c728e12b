"""Operators on shards: the local form of the step's operators on one rank.

Most operators are computed unchanged. Exceptions are sizes in arguments, means over a sharded dimension, sharded rows
and classes, reductions over ranks, and random numbers, which every rank generates for the whole tensor so that they
equal those of one device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from wirewise.errors import PlanError
from wirewise.planners.parallel.rhino.loops import LOSSES
from wirewise.runtime.parallel.groups import MeshGroups
from wirewise.runtime.parallel.parts import Placements, local_shape, part_of_mesh
from wirewise.runtime.whole_modules import WholeModules

__all__ = ["SUM", "LocalOperator", "argument_of", "draws_random_numbers", "local_operator"]

_EACH, _MEAN, SUM = 0, 1, 2
"""`reduction` of losses: of each element for itself, a mean or a sum."""


@dataclass(frozen=True)
class LocalOperator:
    """Operator of the graph on this rank's shards."""

    node: fx.Node
    inputs: dict[fx.Node, Placements]
    """Placement of each input as the operator reads it."""
    outputs: tuple[Placements, ...]
    """Placement of each output."""
    groups: MeshGroups

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of this rank's shard of the first output."""
        return self.local(_values(self.node)[0], self.outputs[0])

    def local(self, value: Tensor, placements: Placements) -> tuple[int, ...]:
        """Shape of this rank's shard of a value."""
        return local_shape(value.shape, placements, self.groups.mesh)

    def argument(self, position: int) -> fx.Node:
        """Input at an argument position."""
        found = self.node.args[position]
        assert isinstance(found, fx.Node)
        return found

    def placed(self, position: int) -> Placements:
        """Placements of the input at an argument position."""
        return self.inputs[self.argument(position)]

    def axes(self, position: int, dim: int) -> list[int]:
        """Mesh dimensions that shard a dimension of an input."""
        dim %= max(self.argument(position).meta["val"].dim(), 1)
        return [axis for axis, one in enumerate(self.placed(position)) if one.kind == "S" and one.dim == dim]

    def first_of(self, position: int, dim: int) -> int:
        """Global index of this rank's first row of an input.

        Raises:
            PlanError: The rows are not contiguous.
        """
        size, start = self.argument(position).meta["val"].shape[dim], 0
        for axis in self.axes(position, dim):
            if self.placed(position)[axis].factor > 1:
                raise PlanError(
                    f"{self.node.name} ({self.node.target}) takes parts of several blocks; expected rows next to each "
                    "other: plan again"
                )
            size //= self.groups.mesh[axis]
            start += self.groups.place[axis] * size
        return start

    def reduced(self, tensor: Tensor, axes: Sequence[int], op: str = "sum") -> Tensor:
        """Reduce a tensor over the ranks along mesh dimensions."""
        for axis in axes:
            tensor = self.groups.all_reduce(axis, tensor, op).wait()
        return tensor

    def part(self, tensor: Tensor, output: int = 0) -> Tensor:
        """This rank's shard of a whole output."""
        return part_of_mesh(tensor, self.outputs[output], self.groups.mesh, self.groups.place)


Handler = Callable[..., Any]
"""Function of the operator and the arguments of one run."""


def local_operator(own: LocalOperator) -> Callable[..., Any]:
    """Make the function that computes this rank's shard of the operator's outputs from the operator's arguments.

    Raises:
        PlanError: The operator cannot be computed from these shards.
    """
    target: Any = own.node.target
    if target is operator.getitem:
        return operator.getitem
    if _name(target).startswith("_assert"):
        # What was checked when the step was captured.
        return lambda *_, **__: None
    split = [
        one for placements in (*own.inputs.values(), *own.outputs) for one in placements if one.kind != "R"
    ]
    handler = _HANDLERS.get(_name(target))
    # What was moved may lie in another order in memory than when the step was captured.
    if handler is None or (not split and handler not in (_view, _group_norm, _group_norm_backward)):
        if split and draws_random_numbers(own.node):
            raise PlanError(
                f"{own.node.name} ({target}) draws random numbers and is placed {_words(own.outputs[0])}; expected it "
                "whole on every rank: plan again, or train without it"
            )
        return target  # type: ignore[no-any-return]

    def run(*args: Any, **kwargs: Any) -> Any:
        return handler(own, *args, **kwargs)

    return run


def draws_random_numbers(node: fx.Node) -> bool:
    """Whether an operator depends on the state of a random number generator."""
    if WholeModules.draws(node):
        return True
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    # Attention has an argument for dropout, which is mostly 0.
    schema = node.target._schema  # type: ignore[union-attr]
    for place, argument in enumerate(schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given)
    return True


def _name(target: Any) -> str:
    return target._schema.name.removeprefix("aten::") if hasattr(target, "_schema") else str(target)


def _words(placements: Placements) -> str:
    return " ".join(map(str, placements))


def _values(node: fx.Node) -> list[Tensor]:
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _call(own: LocalOperator, *args: Any, **kwargs: Any) -> Any:
    return own.node.target(*args, **kwargs)  # type: ignore[operator]


# Sizes in arguments.


def _view(own: LocalOperator, x: Tensor, _size: Any) -> Tensor:
    return x.reshape(own.shape)


def _expand(own: LocalOperator, x: Tensor, _size: Any, **_: Any) -> Tensor:
    return x.expand(own.shape)


def _factory(own: LocalOperator, _size: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(own, own.shape, *args, **kwargs)


def _like_factory(own: LocalOperator, x: Tensor, _size: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(own, x, own.shape, *args, **kwargs)


def _whole_then_cut(own: LocalOperator, *args: Any, **kwargs: Any) -> Tensor:
    return own.part(_call(own, *args, **kwargs))


def _split(own: LocalOperator, x: Tensor, _size: Any, dim: int = 0) -> Any:
    whole: Any = own.argument(0).meta["val"]
    sizes = [part.shape[dim] * x.shape[dim] // whole.shape[dim] for part in _values(own.node)]
    return x.split(sizes, dim)


def _slice(
    own: LocalOperator,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    whole: int = own.argument(0).meta["val"].shape[dim]
    if x.shape[dim] == whole:
        return _call(own, x, dim, start, end, step)
    first, last = _part_of_bounds(own, whole, x.shape[dim], start, end, step)
    return _call(own, x, dim, first, last, 1)


def _part_of_bounds(
    own: LocalOperator, whole: int, part: int, start: int | None, end: int | None, step: int
) -> tuple[int, int]:
    """First index of a slice and the one after the last in this rank's part of each block."""
    given = (start or 0, whole if end is None else end)
    first, last = (max(0, min(whole, at + whole * (at < 0))) for at in given)
    if step != 1 or first * part % whole or last * part % whole:
        raise PlanError(
            f"{own.node.name} takes {first} to {last} in steps of {step} of a dimension of {whole} that is cut; "
            "expected bounds of whole blocks: plan again"
        )
    return first * part // whole, last * part // whole


def _slice_backward(
    own: LocalOperator, gradient: Tensor, _size: Any, dim: int, start: int, end: int, step: int
) -> Any:
    whole, part = _values(own.node)[0].shape[dim], own.shape[dim]
    if part == whole:
        return _call(own, gradient, own.shape, dim, start, end, step)
    first, last = _part_of_bounds(own, whole, part, start, end, step)
    return _call(own, gradient, own.shape, dim, first, last, 1)


def _with_input_size(own: LocalOperator, gradient: Tensor, _size: Any, *args: Any) -> Any:
    return _call(own, gradient, own.shape, *args)


def _upsample_backward(own: LocalOperator, gradient: Tensor, output: Any, _size: Any, *args: Any) -> Any:
    return _call(own, gradient, output, own.shape, *args)


# Convolutions and norms of groups of channels.


def _convolution(own: LocalOperator, x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any) -> Any:
    *_, groups = args
    _no_spatial(own, 0)
    if bias is not None and any(own.groups.place[axis] for axis in own.axes(0, 1) if own.axes(1, 1)):
        # Ranks have partial sums: one of them adds the bias.
        bias = torch.zeros_like(bias)
    if groups != 1:
        groups = groups * x.shape[1] // own.argument(0).meta["val"].shape[1]
    return _call(own, x, weight, bias, *args[:-1], groups)


def _convolution_backward(
    own: LocalOperator, gradient: Tensor, x: Tensor, weight: Tensor, sizes: Any, *args: Any
) -> Any:
    _no_spatial(own, 1)
    return _call(own, gradient, x, weight, sizes and [gradient.shape[1]], *args)


def _no_spatial(own: LocalOperator, position: int) -> None:
    for one in own.placed(position):
        if one.kind == "S" and one.dim > 1:
            raise PlanError(
                f"{own.node.name} ({own.node.target}) takes an image cut along dimension {one.dim}; expected it whole "
                "in height and width: rows at the borders are not exchanged, plan again"
            )


def _group_norm(
    own: LocalOperator, x: Tensor, weight: Any, bias: Any, n: int, c: int, _space: int, group: int, eps: float
) -> Any:
    sizes = (*x.shape[:2], prod(x.shape[2:]), _groups(own, 0, x, group, c))
    return _call(own, x.contiguous(), weight, bias, *sizes, eps)


def _group_norm_backward(
    own: LocalOperator,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    n: int,
    c: int,
    _space: int,
    group: int,
    mask: Any,
) -> Any:
    sizes = (*x.shape[:2], prod(x.shape[2:]), _groups(own, 1, x, group, c))
    return _call(own, gradient.contiguous(), x.contiguous(), mean, rstd, weight, *sizes, mask)


def _groups(own: LocalOperator, position: int, x: Tensor, group: int, channels: int) -> int:
    found, rest = divmod(group * x.shape[1], channels)
    if rest:
        raise PlanError(
            f"{own.node.name} has {group} groups of channels, which {channels // x.shape[1]} ranks cannot share evenly;"
            " expected a multiple: plan again"
        )
    return found


# Means over a dimension that is cut, of which a rank has a partial sum.


def _mean(own: LocalOperator, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    whole: Tensor = own.argument(0).meta["val"]
    over = args[0] if args and args[0] else range(whole.dim())
    share = prod(x.shape[dim] for dim in over) / max(prod(whole.shape[dim] for dim in over), 1)
    return _call(own, x, *args, **kwargs) * share


def _loss(own: LocalOperator, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return _call(own, x, *args, **kwargs) * (_share(own, 0, x) if _is_mean(own) else 1.0)


def _loss_backward(own: LocalOperator, gradient: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return _call(own, gradient, x, *args, **kwargs) * (_share(own, 1, x) if _is_mean(own) else 1.0)


def _is_mean(own: LocalOperator) -> bool:
    return bool(argument_of(own.node, "reduction") == _MEAN)


def argument_of(node: fx.Node, name: str) -> Any:
    """Argument of an operator by its schema name, or its default."""
    for place, one in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if one.name == name:
            return node.args[place] if place < len(node.args) else node.kwargs.get(name, one.default_value)
    return None


def _share(own: LocalOperator, position: int, x: Tensor) -> float:
    return x.numel() / max(own.argument(position).meta["val"].numel(), 1)


# Rows, classes and experts of which a rank has some.


def _experts(own: LocalOperator, tokens: Tensor, weight: Tensor, ends: Tensor, *gradient: Tensor) -> Any:
    """Products of a rank's experts with their tokens, and zeros for the tokens of others; or the gradients of both."""
    if not own.axes(1, 0):
        return _call(own, tokens, weight, ends, *gradient)
    first = own.first_of(1, 0)
    begin = int(ends[first - 1]) if first else 0
    mine = slice(begin, int(ends[first + len(weight) - 1]))
    found = _call(
        own, tokens[mine], weight, ends[first : first + len(weight)] - begin, *(one[mine] for one in gradient)
    )
    of_tokens, *others = found if gradient else (found,)
    whole = of_tokens.new_zeros((len(tokens), *of_tokens.shape[1:]))
    whole[mine] = of_tokens
    return (whole, *others) if gradient else whole


def _embedding(own: LocalOperator, weight: Tensor, indices: Tensor, *args: Any) -> Tensor:
    if not own.axes(0, 0):
        found: Tensor = _call(own, weight, indices, *args)
        return found
    at, inside = _inside(own, weight, 0, indices)
    return weight[at] * inside.unsqueeze(-1)


def _inside(own: LocalOperator, table: Tensor, dim: int, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Where this rank has the rows of a table, 0 for others' rows, and whether it has them."""
    size: int = own.argument(0).meta["val"].shape[dim]
    at = torch.where(indices < 0, indices + size, indices) - own.first_of(0, dim)
    inside = (at >= 0) & (at < table.shape[dim])
    return torch.where(inside, at, 0), inside


def _beside(rows: Tensor, inside: Tensor, dim: int) -> Tensor:
    """Rows with zeros where they are others', [..., indices, ...]."""
    return rows * inside.view(*inside.shape, *[1] * (rows.dim() - dim - inside.dim()))


def _index(own: LocalOperator, x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    numbers = _row_numbers(own, indices)
    if numbers is None:
        return _call(own, x, indices)
    at, inside = _inside(own, x, 0, numbers)
    return _beside(x[at], inside, 0)


def _row_numbers(own: LocalOperator, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Index of rows of which this rank has some; None if it has all."""
    if not own.axes(0, 0) or indices[0] is None:
        return None
    if len(indices) > 1:
        raise PlanError(
            f"{own.node.name} takes elements by the numbers of several dimensions of which the first is cut; expected "
            "it whole: plan again"
        )
    return indices[0]


def _index_select(own: LocalOperator, x: Tensor, dim: int, indices: Tensor) -> Any:
    dim %= x.dim()
    if not own.axes(0, dim):
        return _call(own, x, dim, indices)
    at, inside = _inside(own, x, dim, indices)
    return _beside(_call(own, x, dim, at), inside, dim)


def _gather(own: LocalOperator, x: Tensor, dim: int, indices: Tensor, **more: Any) -> Any:
    if not own.axes(0, dim):
        return _call(own, x, dim, indices, **more)
    at, inside = _inside(own, x, dim % x.dim(), indices)
    return _call(own, x, dim, at, **more) * inside


def _added_to(own: LocalOperator, x: Tensor) -> Tensor:
    """Target of added rows; of partial sums one rank has it."""
    alone = [
        axis
        for axis, (before, after) in enumerate(zip(own.placed(0), own.outputs[0], strict=True))
        if (before.kind, after.kind) == ("R", "P")
    ]
    return torch.zeros_like(x) if any(own.groups.place[axis] for axis in alone) else x


def _index_add(own: LocalOperator, x: Tensor, dim: int, indices: Tensor, rows: Tensor, **more: Any) -> Any:
    x, dim = _added_to(own, x), dim % x.dim()
    if own.axes(0, dim):
        indices, inside = _inside(own, x, dim, indices)
        rows = _beside(rows, inside, dim)
    return _call(own, x, dim, indices, rows, **more)


def _index_put(
    own: LocalOperator, x: Tensor, indices: Sequence[Tensor | None], rows: Tensor, accumulate: bool = False
) -> Any:
    if accumulate:
        x, numbers = _added_to(own, x), _row_numbers(own, indices)
        if numbers is not None:
            at, inside = _inside(own, x, 0, numbers)
            indices, rows = [at], _beside(rows, inside, 0)
    return _call(own, x, indices, rows, accumulate)


def _scatter_add(own: LocalOperator, x: Tensor, dim: int, indices: Tensor, rows: Tensor) -> Any:
    x = _added_to(own, x)
    if own.axes(0, dim):
        indices, inside = _inside(own, x, dim % x.dim(), indices)
        rows = rows * inside
    return _call(own, x, dim, indices, rows)


def _embedding_backward(
    own: LocalOperator, gradient: Tensor, indices: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    axes = [axis for axis, one in enumerate(own.outputs[0]) if one.kind == "S" and one.dim == 0]
    if not axes:
        found: Tensor = _call(own, gradient, indices, count, padding, by_frequency)
        return found
    rows, first = own.shape[0], 0
    size = count
    for axis in axes:
        size //= own.groups.mesh[axis]
        first += own.groups.place[axis] * size
    at = indices - first
    # Rows that other ranks have go to one more row, which is left away.
    at = torch.where((at >= 0) & (at < rows) & (indices != padding), at, rows)
    kept: Tensor = _call(own, gradient, at, rows + 1, -1, by_frequency)
    return kept[:rows]


def _nll_loss(
    own: LocalOperator, x: Tensor, target: Tensor, weight: Any, reduction: int, ignored: int
) -> Any:
    if reduction == _EACH or x.dim() == 1:
        return _call(own, x, target, weight, reduction, ignored)
    at = target - (own.first_of(0, 1) if own.axes(0, 1) else 0)
    valid = target != ignored
    inside = valid & (at >= 0) & (at < x.shape[1])
    picked = x.gather(1, torch.where(inside, at, 0).unsqueeze(1)).squeeze(1)
    counts = valid.to(x.dtype)
    if weight is not None:
        # Classes with weights are whole on every rank.
        counts = weight[torch.where(valid, target, 0)] * counts
    # A mean is one over all samples.
    total = own.reduced(counts.sum(), own.axes(0, 0))
    loss = -(picked * counts * inside).sum()
    if reduction == _MEAN:
        loss = loss / total
    # Of partial sums one rank has the total.
    told = [axis for axis, one in enumerate(own.outputs[1]) if one.kind == "P"]
    return loss, torch.zeros_like(total) if any(own.groups.place[axis] for axis in told) else total


def _nll_loss_backward(
    own: LocalOperator,
    gradient: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Any,
    reduction: int,
    ignored: int,
    total: Tensor,
) -> Any:
    if weight is not None or x.dim() == 1 or not own.axes(1, 1):
        return _call(own, gradient, x, target, weight, reduction, ignored, total)
    at = target - own.first_of(1, 1)
    inside = (target != ignored) & (at >= 0) & (at < x.shape[1])
    each = -gradient / total if reduction == _MEAN else -gradient
    found = torch.zeros_like(x)
    return found.scatter_(1, torch.where(inside, at, 0).unsqueeze(1), (each * inside).unsqueeze(1))


# Softmax over a dimension that is cut: maximum and sum of each row are exchanged.


def _softmax(own: LocalOperator, x: Tensor, dim: int, half: bool) -> Any:
    axes = own.axes(0, dim)
    if not axes:
        return _call(own, x, dim, half)
    x = x - own.reduced(x.amax(dim, keepdim=True), axes, "max")
    total = own.reduced(x.exp().sum(dim, keepdim=True), axes)
    return x - total.log() if _name(own.node.target) == "_log_softmax" else x.exp() / total


def _softmax_backward(own: LocalOperator, gradient: Tensor, output: Tensor, dim: int, dtype: Any) -> Any:
    axes = own.axes(1, dim)
    if not axes:
        return _call(own, gradient, output, dim, dtype)
    if _name(own.node.target) == "_log_softmax_backward_data":
        return gradient - output.exp() * own.reduced(gradient.sum(dim, keepdim=True), axes)
    scaled = gradient * output
    return scaled - output * own.reduced(scaled.sum(dim, keepdim=True), axes)


# Random numbers: those of one device, of which a rank keeps its part.


def _bernoulli(own: LocalOperator, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not args:
        raise PlanError(
            f"{own.node.name} draws by probabilities that are cut; expected them whole: plan again"
        )
    whole: Tensor = own.argument(0).meta["val"]
    return own.part(_call(own, x.new_empty(whole.shape), *args, **kwargs))


def _random_like(own: LocalOperator, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    whole: Tensor = own.argument(0).meta["val"]
    return own.part(_call(own, x.new_empty(whole.shape), *args, **kwargs))


def _native_dropout(own: LocalOperator, x: Tensor, p: float, train: bool | None) -> Any:
    if not train:
        return _call(own, x, p, train)
    ones = torch.ones(own.argument(0).meta["val"].shape, dtype=x.dtype, device=x.device)
    scaled, mask = _call(own, ones, p, train)
    return x * own.part(scaled), own.part(mask, 1)


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), _view),
    "expand": _expand,
    **dict.fromkeys(("full", "zeros", "ones", "empty"), _factory),
    **dict.fromkeys(("new_zeros", "new_full", "new_ones", "new_empty"), _like_factory),
    **dict.fromkeys(("arange", "rand", "randn", "randint"), _whole_then_cut),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), _split),
    "slice": _slice,
    "slice_backward": _slice_backward,
    **dict.fromkeys(("select_backward", "unfold_backward", "diagonal_backward"), _with_input_size),
    **dict.fromkeys(
        ("upsample_nearest2d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward"),
        _upsample_backward,
    ),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "mean": _mean,
    **dict.fromkeys(LOSSES, _loss),
    **dict.fromkeys([f"{name}_backward" for name in LOSSES], _loss_backward),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    "index_select": _index_select,
    "gather": _gather,
    "index_add": _index_add,
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _index_put),
    "scatter_add": _scatter_add,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_loss_backward),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(
        ("transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"), _experts
    ),
    "bernoulli": _bernoulli,
    **dict.fromkeys(("rand_like", "randn_like"), _random_like),
    "native_dropout": _native_dropout,
}
"""Operators that differ on parts, by their names; ATen's without a namespace."""
