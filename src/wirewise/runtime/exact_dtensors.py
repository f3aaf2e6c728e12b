"""DTensors whose functions equal those of the whole tensor, whatever an optimizer does with them.

torch's DTensor returns a rank's own part of an unreduced norm as a Python number, and refuses some in-place
functions. Clipping by `norm().item()` was wrong with it, and Adafactor and Rprop failed. Here, elementwise functions
run on shards, norms are reduced at once, and all others run on the gathered tensor.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from wirewise.plans.parallel import DimPlacement
from wirewise.runtime.stage_gradients import NUMBERS, TrackedMixin, tensor_leaves

__all__ = ["ExactDTensor"]

_ELEMENTWISE = {
    "__get__", "__rpow__", "__rsub__", "__rtruediv__", "__set__", "abs", "add", "addcdiv", "addcmul", "bfloat16",
    "clamp", "clamp_max", "clamp_min", "clone", "contiguous", "copy", "cpu", "detach", "dim", "div", "double",
    "empty_like", "eq", "exp", "fill", "float", "full_like", "ge", "gt", "half", "isfinite", "isinf", "isnan", "le",
    "lerp", "log", "lt", "maximum", "minimum", "mul", "ne", "neg", "numel", "ones_like", "pow", "rand_like",
    "reciprocal", "requires_grad", "rsqrt", "rsub", "sign", "size", "sqrt", "square", "stride", "sub", "to",
    "true_divide", "where", "zero", "zeros_like",
}  # fmt: skip
"""Functions of single elements, and of no values at all; in place too."""
_OF_AUTOGRAD = {"backward", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_"}
_SUMMED = {"linalg_vector_norm", "norm", "sum", "vector_norm"}
"""Reductions that torch sums over ranks rightly where they are of all elements."""


class ExactDTensor(TrackedMixin, DTensor):
    """Shard of a parameter, of its gradient, or of an optimizer's result."""

    @classmethod
    def execute(cls, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Compute the result of the whole tensors, sharded where they are."""
        if name in NUMBERS:
            return function(args[0].full_tensor(), *args[1:], **kwargs)
        sharded = [one for one in tensor_leaves([*args, *kwargs.values()]) if _is_sharded(one)]
        if not sharded or name in _OF_AUTOGRAD:
            return function(*args, **kwargs)
        base = name if name.startswith("__") else name.removesuffix("_")
        if base.startswith(("_foreach", "_fused", "_amp_foreach")) or (
            base in _ELEMENTWISE and _lie_alike(args, kwargs)
        ):
            return _summed(function(*args, **kwargs))
        if base in _SUMMED and not _of_dimension(base, args, kwargs):
            return _summed(function(*args, **kwargs))
        if (name.endswith("_") and not name.startswith("__")) or name == "__setitem__":
            return _in_place(function, args, kwargs)
        return function(*_gathered(args), **{key: _gathered([one])[0] for key, one in kwargs.items()})

    @classmethod
    def of_plain(cls, tensor: Any) -> Any:
        """Wrap a DTensor of torch, in the same memory."""
        return cls(tensor._local_tensor, tensor._spec, requires_grad=False)  # type: ignore[call-arg]

    def plain(self) -> Tensor:
        """Unwrap to a DTensor of torch, in the same memory."""
        return DTensor(self._local_tensor, self._spec, requires_grad=self.requires_grad)  # type: ignore[call-arg]

    def whole(self) -> Tensor:
        """Gather all values on each rank of the mesh."""
        return self.full_tensor()

    def alike(self, value: Tensor) -> Tensor:
        """Put a number that is equal on all ranks on the mesh."""
        return DTensor.from_local(value, self.device_mesh, _whole_on(self), run_check=False)


def _is_sharded(one: Any) -> bool:
    return isinstance(one, DTensor) and any(not placed.is_replicate() for placed in one.placements)


def _whole_on(one: DTensor) -> list[Replicate]:
    return [Replicate()] * one.device_mesh.ndim


def _lie_alike(args: Any, kwargs: Any) -> bool:
    """Whether DTensors of more than one element have one shape and one layout."""
    given = [
        one for one in tensor_leaves([*args, *kwargs.values()]) if isinstance(one, DTensor) and one.dim()
    ]
    return len({(tuple(one.shape), one.placements) for one in given}) == 1


def _of_dimension(base: str, args: Any, kwargs: Any) -> bool:
    """Whether a reduction is along some dimensions, which follow the exponent of a norm."""
    return kwargs.get("dim") is not None or len(args) > (1 if base == "sum" else 2)


def _gathered(values: Any) -> list[Any]:
    """Arguments with DTensors gathered, those in lists too."""
    result: list[Any] = []
    for one in values:
        if isinstance(one, list | tuple):
            result.append(type(one)(_gathered(one)))
        else:
            result.append(one.detach().redistribute(placements=_whole_on(one)) if _is_sharded(one) else one)
    return result


def _summed(result: Any) -> Any:
    """Results whose sums over ranks are done."""
    if isinstance(result, list | tuple):
        return type(result)(_summed(one) for one in result)
    partial = isinstance(result, DTensor) and any(placed.is_partial() for placed in result.placements)
    return result.redistribute(placements=_whole_on(result)) if partial else result


def _in_place(function: Any, args: Any, kwargs: Any) -> Any:
    """Change the gathered tensor, and take this rank's part of it."""
    # The package's models are of such tensors, and import this module.
    from wirewise.runtime.parallel.parts import part_of_mesh

    target, given = args[0], _gathered(args)
    result = function(*given, **kwargs)
    if not _is_sharded(target):
        return result
    mesh: Any = target.device_mesh
    words = tuple(_word(placed) for placed in target.placements)
    whole = given[0].to_local()
    target._local_tensor.copy_(part_of_mesh(whole, words, tuple(mesh.shape), tuple(mesh.get_coordinate())))
    return target


def _word(placed: Any) -> DimPlacement:
    return (
        DimPlacement("R")
        if placed.is_replicate()
        else DimPlacement("S", placed.dim, getattr(placed, "split_factor", 1))
    )
