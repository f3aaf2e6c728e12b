"""Local parts of parameters and values that may be DTensors, as in tensor-parallel stages."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.plans.sharding import Sharding

__all__ = [
    "local_part",
    "own_gradient",
    "plain_names",
    "plain_parameter",
    "plain_value",
    "ranks_alike",
    "set_memory",
    "with_part",
]


def _is_dtensor(tensor: Tensor) -> bool:
    # The module takes a second to import, and without it there is no DTensor.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Any) -> Tensor:
    """Local part of a tensor, sharing its memory; all of a plain tensor."""
    found: Tensor = tensor._local_tensor if _is_dtensor(tensor) else tensor
    return found.detach()


def plain_names(named: Mapping[str, nn.Parameter]) -> list[str]:
    """Names of the parameters that are not DTensors."""
    return [name for name, parameter in named.items() if not _is_dtensor(parameter)]


def plain_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter; for a DTensor, a plain parameter of its local part, whose gradients are plain tensors."""
    return nn.Parameter(local_part(parameter)) if _is_dtensor(parameter) else parameter


def set_memory(parameter: Any, source: Any) -> None:
    """Make a parameter share the memory of another one with the same layout."""
    if _is_dtensor(parameter):
        # `parameter.data = ...` would leave the local tensor as it is.
        parameter._local_tensor = source._local_tensor
    else:
        parameter.data = source.data


def own_gradient(parameter: Any) -> Tensor | None:
    """This rank's part of a parameter's gradient in the parameter's layout; a collective call on its mesh."""
    gradient = parameter.grad
    if gradient is not None and _is_dtensor(gradient) and gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return None if gradient is None else local_part(gradient)


def with_part(part: Tensor, like: Any) -> Tensor:
    """Tensor with this rank's part, distributed like another one."""
    if not _is_dtensor(like):
        return part
    made = sys.modules["torch.distributed.tensor"].DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    assert isinstance(made, Tensor)
    return made


def ranks_alike(parameter: nn.Parameter, width: int, shard: bool) -> int:
    """Number of a stage's ranks that hold the same part of a parameter.

    Args:
        parameter: Parameter of a stage.
        width: Number of ranks that share the stage.
        shard: Whether a plain tensor is a separate shard on each of them.
    """
    if not _is_dtensor(parameter):
        return 1 if shard else width
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
    split = [axis for axis, own in enumerate(parameter.placements) if not own.is_replicate()]  # type: ignore[attr-defined]
    return mesh.size() // torch.Size([mesh.size(axis) for axis in split]).numel()


def plain_value(value: Any, layout: Sharding, module: str) -> Tensor:
    """This rank's part of a module's output, with gradients; a DTensor must have the plan's layout.

    Args:
        value: Output of the module.
        layout: Layout on the ranks of the stage.
        module: Name of the module for error messages.

    Raises:
        InputError: A DTensor has another layout.
    """
    if not _is_dtensor(value):
        return value  # type: ignore[no-any-return]
    from torch.distributed.tensor import Partial, Replicate, Shard

    split = [dim for dim, axes in enumerate(layout.dims) if axes]
    wanted = Partial() if layout.partial else Shard(split[0]) if split else Replicate()
    if (
        tuple(value.placements) != (wanted,)
        or tuple(value.device_mesh.mesh.flatten().tolist()) != layout.ranks
    ):
        raise InputError(
            f"module {module!r} gave a DTensor placed {tuple(value.placements)} on the ranks "
            f"{value.device_mesh.mesh.flatten().tolist()}; expected {wanted} on the ranks {list(layout.ranks)} of the "
            "stage: name the dimension in the plan's splits, or redistribute in the module"
        )
    # Gradients of partial sums come whole to each of them.
    found: Tensor = value.to_local(grad_placements=(Replicate() if layout.partial else wanted,))
    return found
