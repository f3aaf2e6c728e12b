"""Outputs of distributed models as tensors whose `backward` is checked before it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_default_nowrap_functions
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.integrations.pyg.detached import mixes_rows, tensors_of
from wirewise.integrations.pyg.examination import examine
from wirewise.integrations.pyg.own_rows import plain_rows

__all__ = ["OutputTensor", "strip_tracking", "track_outputs"]


_HOOKS = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)


class OutputTensor(Tensor):
    """Output of a distributed model, or a tensor computed from one.

    It is an ordinary tensor except for `backward`, which examines the loss before gradients flow. Pickles and copies
    hold a plain tensor.
    """

    pools = ""
    """Function that combined own rows of an output from which this tensor was computed."""
    mixes = ""
    """Function of `pools` whose result was used without gradient, as after `detach`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at a loss before its back-propagation; compute everything else as always."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return _backward(*args, **kwargs)
        if func is torch.autograd.grad:
            raise InputError(
                "torch.autograd.grad of a distributed model's output would return the part of this rank only; expected "
                "loss.backward(), after which p.grad holds the sums over ranks"
            )
        if func in _HOOKS:
            raise InputError(
                f"{func.__name__} on what a distributed model returned would see the gradient of own rows only; "
                "expected none: scale the loss, or read and change p.grad after backward()"
            )
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if func not in get_default_nowrap_functions():
                for tensor in tensors_of((result,)):
                    _track(tensor)
            _mark(func, args, kwargs, result)
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a plain tensor."""
        return strip_tracking(self).__reduce_ex__(protocol)


def _mark(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Remember where rows were taken together, in results and in what is computed from them."""
    given = [t for t in tensors_of((*args, *kwargs.values())) if isinstance(t, OutputTensor)]
    mixes = next((t.mixes for t in given if t.mixes), "")
    pools = next((t.pools for t in given if t.pools), "")
    if given and not mixes and not pools and mixes_rows(func, args, kwargs, result, given):
        pools = func.__name__
    if not mixes and not pools:
        return
    for tensor in tensors_of((result,)):
        if isinstance(tensor, OutputTensor):
            tensor.pools = tensor.pools or pools
            # With a gradient the graph of the loss shows it.
            tensor.mixes = mixes or ("" if tensor.requires_grad else pools)


def track_outputs(out: Any) -> Any:
    """Convert outputs that require a gradient to tensors of this class."""
    for value in (out,) if isinstance(out, Tensor) else pytree.tree_leaves(out):
        if isinstance(value, Tensor) and value.requires_grad:
            _track(value)
    return out


def _track(tensor: Tensor) -> None:
    """Turn a new tensor into an output tensor, the object itself: a view of it could not take `loss += penalty`."""
    if type(tensor) is Tensor:
        tensor.__class__ = OutputTensor


def strip_tracking(value: Any) -> Any:
    """Convert a tensor, or nested tensors, to plain tensors."""
    if type(value) is OutputTensor:
        return value.as_subclass(Tensor)
    return pytree.tree_map(
        lambda v: v.as_subclass(Tensor) if type(v) is OutputTensor else plain_rows(v), value
    )


def _backward(
    loss: Tensor,
    gradient: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    plain = strip_tracking(loss)
    examination = examine(plain, create_graph=create_graph, mixes=getattr(loss, "mixes", ""))
    try:
        # Not under DisableTorchFunctionSubclass: gradient checkpointing calls convolutions with edge tokens inside.
        plain.backward(gradient, retain_graph, create_graph, inputs)
    except Exception as error:
        examination.leave(error)
        raise
    finally:
        examination.end()


# Compilers trace tensors of other classes as what they are not; functions with these run uncompiled.
_uncompiled: set[Any] = getattr(torch._dynamo.config, "nontraceable_tensor_subclasses", set())
_uncompiled.add(OutputTensor)
