"""Redistribution of DTensors to other meshes: one tensor, or a whole model without a checkpoint.

`DTensor.redistribute` refuses another mesh, and with equal placements returns the tensor where it was (torch 2.13).
Here the layouts of both meshes become a reshard plan, which is made once, kept, and executed bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.reshard import alike_links, cross_mesh
from wirewise.plans.reshard import ReshardPlan
from wirewise.plans.sharding import LaidOutTensor, Sharding
from wirewise.runtime.pipeline.reshard import Resharder, hosts_of_ranks
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["convert_state_dict", "layout_of", "redistribute_across"]

_BUCKET_BYTES = 1 << 26


class _Kept(NamedTuple):
    """Prepared move for tensors of a shape and type between two layouts."""

    mover: Resharder
    spec: DTensorSpec
    """Mesh, placements and shape of the result."""
    holds: bool
    """Whether this rank has a part to send."""
    links: Links | None


_KEPT: WeakKeyDictionary[Any, dict[Any, _Kept]] = WeakKeyDictionary()
"""Movers by group, then by tensor and layouts."""


def redistribute_across(
    tensor: DTensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    group: dist.ProcessGroup | None = None,
    links: Links | None = None,
    strategy: str = "auto",
    timeout_s: float = 120.0,
) -> DTensor:
    """Redistribute a tensor to another mesh, with other, overlapping or the same ranks.

    All ranks of the group call it in the same order, also those in neither mesh. Gradients are redistributed in
    reverse, and all ranks then participate in the backward pass.

    Args:
        tensor: Tensor to move; on ranks outside its mesh, a DTensor with an empty local part.
        device_mesh: Mesh of the result.
        placements: One placement for each axis of the target mesh.
        group: Process group with all ranks of both meshes. Defaults to the default group.
        links: Links between the group's ranks. Defaults to uniform links between hosts, by host name.
        strategy: A strategy of `planners.reshard.cross_mesh`.
        timeout_s: Seconds after which an unresponsive peer counts as hung.

    Raises:
        InputError: Placements cannot be planned, such as an unreduced mean, or ranks are not in the group.
        PeerError: A peer is gone.
    """
    if not isinstance(tensor, DTensor):
        raise InputError(
            f"got a {type(tensor).__name__}; expected a DTensor, such as distribute_tensor returns"
        )
    return _Across.apply(tensor, device_mesh, tuple(placements), (group, links, strategy, timeout_s))


def layout_of(
    device_mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int], label: str = "the tensor"
) -> Sharding:
    """Layout described by placements on a mesh; ranks are those of the default group.

    Args:
        device_mesh: Mesh of ranks.
        placements: One placement for each mesh axis.
        shape: Shape of the whole tensor.
        label: Name of the tensor for error messages.

    Raises:
        InputError: Raised by `redistribute_across`.
    """
    mesh = tuple(device_mesh.mesh.shape)
    if len(placements) != len(mesh):
        raise InputError(
            f"{label}: got {len(placements)} placements; expected one for each of {len(mesh)} axes"
        )
    orders: list[list[int]] = [[] for _ in shape]
    partial = []
    # From the last axis on: a strided axis says how many parts the later axes had made before it.
    for axis in reversed(range(len(mesh))):
        placement = placements[axis]
        if isinstance(placement, Partial) and type(placement) is Partial and placement.reduce_op == "sum":
            partial.append(axis)
        elif isinstance(placement, Shard | _StridedShard):
            if not -len(shape) <= placement.dim < len(shape):
                raise InputError(
                    f"{label}: got {placement} of {len(shape)} dimensions; expected one of these"
                )
            own = orders[placement.dim]
            own.insert(_place(placement, own, mesh, label), axis)
        elif not isinstance(placement, Replicate):
            raise InputError(
                f"{label}: got the placement {placement}; expected Shard, Replicate or Partial (sum)"
            )
    for dim, own in enumerate(orders):
        parts = torch.Size([mesh[axis] for axis in own]).numel()
        if own != sorted(own) and shape[dim] % parts:
            raise InputError(
                f"{label}: dimension {dim} of size {shape[dim]} is split by axes {own} with strides into {parts} "
                "parts; expected a size that divides"
            )
    return Sharding(
        mesh=mesh,
        ranks=tuple(device_mesh.mesh.flatten().tolist()),
        dims=tuple(map(tuple, orders)),
        partial=tuple(sorted(partial)),
    )


def convert_state_dict(
    state: dict[str, Any],
    device_mesh: DeviceMesh,
    placements: Mapping[str, Sequence[Placement]] | Callable[[str, DTensor], Sequence[Placement]],
    *,
    group: dist.ProcessGroup | None = None,
    links: Links | None = None,
    bucket_bytes: int = _BUCKET_BYTES,
    timeout_s: float = 120.0,
) -> dict[str, Any]:
    """Convert a model's state to another mesh, such as from FSDP to tensor parallelism or another number of ranks.

    Nothing is written to disk. Tensors move in buckets, and moved ones are removed from `state`, so that a rank holds
    at most one bucket and one shard more than its state.

    Args:
        state: State by name, emptied on the way; all ranks of the group pass the same names in the same order. Values
            other than DTensors are unchanged.
        device_mesh: Mesh of the result.
        placements: Placements of each tensor by name, or a function of name and tensor.
        group: Process group with all ranks of both meshes. Defaults to the default group.
        links: Links between the group's ranks. Defaults to uniform links between hosts, by host name.
        bucket_bytes: Total size of tensors moved at a time, in bytes; a larger tensor moves alone.
        timeout_s: Seconds after which an unresponsive peer counts as hung.

    Raises:
        InputError: A tensor has no placements, or `redistribute_across` refuses them; the message names the tensor.
        PeerError: A peer is gone; unmoved tensors are still in `state`.
    """
    if bucket_bytes < 1:
        raise InputError(f"bucket_bytes is {bucket_bytes}; expected at least 1")
    names = [name for name, one in state.items() if isinstance(one, DTensor)]
    if not callable(placements) and (unlike := sorted(set(names) ^ set(placements))):
        which = "no placements are given for" if unlike[0] in state else "placements are given for"
        raise InputError(
            f"{which} {unlike[0]!r}; expected placements of each DTensor of the state, and no others"
        )
    tensors, specs, bucket, filled = [], {}, 0, 0
    for name in names:
        one = state[name]
        wanted = tuple(placements(name, one) if callable(placements) else placements[name])
        size = one.numel() * one.element_size()
        if filled and filled + size > bucket_bytes:
            bucket, filled = bucket + 1, 0
        filled += size
        tensors.append(_laid_out(name, one, device_mesh, wanted, bucket))
        specs[name] = _spec(device_mesh, wanted, one)
    transport = _transport(group, timeout_s)
    plan = cross_mesh(tensors, alike_links(hosts_of_ranks(transport)) if links is None else links)
    mover = Resharder(_as_reshard(plan), transport)
    given: list[Tensor | None] = [_local(state[name], one) for name, one in zip(names, tensors, strict=True)]
    order, moved = list(state), dict[str, Any]()
    grads = {name: state[name].requires_grad for name in names}
    kinds = {name: state[name].dtype for name in names}
    by_bucket: dict[int, list[int]] = {}
    for place, one in enumerate(tensors):
        by_bucket.setdefault(one.bucket, []).append(place)
    parts = mover.consume(given)
    for own in by_bucket.values():
        # The parts live on in the list alone.
        for place in own:
            del state[names[place]]
        found = next(parts)
        for place in own:
            name = names[place]
            part = found.get(place, torch.empty(0, dtype=kinds[name]))
            moved[name] = DTensor(part, specs[name], requires_grad=grads[name])
    rest = {name: one for name, one in state.items() if name not in moved}
    state.clear()
    return {name: moved[name] if name in moved else rest[name] for name in order}


class _Across(torch.autograd.Function):
    """DTensor to DTensor, with gradients the reverse way."""

    @staticmethod
    def forward(
        ctx: Any, tensor: DTensor, mesh: DeviceMesh, placements: tuple[Placement, ...], how: tuple[Any, ...]
    ) -> DTensor:
        ctx.how, ctx.mesh, ctx.placements = how, tensor.device_mesh, tuple(tensor.placements)
        found = _moved(tensor, mesh, placements, *how)
        ctx.got = tuple(found.placements)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[DTensor, None, None, None]:
        # The gradient of a sum is that of each of its partial sums.
        whole = tuple(Replicate() if isinstance(one, Partial) else one for one in ctx.placements)
        mesh = gradient.device_mesh
        # Ranks outside the mesh do not know how its ranks hold the gradient: it comes back as the tensor went.
        if mesh.get_coordinate() is None:
            gradient = DTensor(gradient._local_tensor, _spec(mesh, ctx.got, gradient), requires_grad=False)
        else:
            gradient = gradient.redistribute(placements=ctx.got)
        return _moved(gradient, ctx.mesh, whole, *ctx.how), None, None, None


def _moved(
    tensor: DTensor,
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    group: dist.ProcessGroup | None,
    links: Links | None,
    strategy: str,
    timeout_s: float,
) -> DTensor:
    kept = _KEPT.setdefault(dist.group.WORLD if group is None else group, {})
    before = (tensor.device_mesh, tensor.placements, tensor.shape, tensor.dtype, tensor.stride())
    key = (before, mesh, placements, strategy, id(links), timeout_s)
    if key not in kept:
        one = _laid_out("tensor", tensor, mesh, placements)
        transport = _transport(group, timeout_s)
        known = alike_links(hosts_of_ranks(transport)) if links is None else links
        mover = Resharder(_as_reshard(cross_mesh(one, known, strategy=strategy)), transport)
        # Links are kept too: a name that is given to others would find this plan.
        kept[key] = _Kept(mover, _spec(mesh, placements, tensor), dist.get_rank() in one.source.ranks, links)
    own = kept[key]
    (part,) = own.mover([tensor._local_tensor.detach() if own.holds else None])
    if own.spec.mesh.get_coordinate() is None and tensor.dim():
        # Of as many dimensions, or torch's `to_local` could not take gradients back there.
        part = part.reshape((0,) * tensor.dim())
    return DTensor(part, own.spec, requires_grad=False)


def _laid_out(
    name: str, tensor: DTensor, mesh: DeviceMesh, placements: tuple[Placement, ...], bucket: int = 0
) -> LaidOutTensor:
    what = f"tensor {name!r}"
    return LaidOutTensor(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        source=layout_of(tensor.device_mesh, tensor.placements, tensor.shape, what),
        target=layout_of(mesh, placements, tensor.shape, what),
        bucket=bucket,
    )


def _local(tensor: DTensor, one: LaidOutTensor) -> Tensor | None:
    """This rank's part; None if it is not in the mesh."""
    return tensor._local_tensor.detach() if dist.get_rank() in one.source.ranks else None


def _spec(mesh: DeviceMesh, placements: tuple[Placement, ...], tensor: DTensor) -> DTensorSpec:
    own = tuple(Shard(p.dim % tensor.dim()) if type(p) is Shard else p for p in placements)
    return DTensorSpec(mesh, own, TensorMeta(tensor.shape, tensor.stride(), tensor.dtype))


def _place(placement: Shard | _StridedShard, later: list[int], mesh: tuple[int, ...], label: str) -> int:
    """Where an axis comes in the order of those that split its dimension."""
    factor = getattr(placement, "split_factor", 1)
    parts = 1
    for place in range(len(later) + 1):
        if parts == factor:
            return place
        if place < len(later):
            parts *= mesh[later[place]]
    raise InputError(
        f"{label}: {placement} has split_factor {factor}; expected the number of parts that some of the later axes "
        "make of the dimension"
    )


def _transport(group: dist.ProcessGroup | None, timeout_s: float) -> Transport:
    if group is not None and dist.get_process_group_ranks(group) != list(range(group.size())):
        raise InputError(
            "the group's ranks are not those of the default group from 0 on, by which meshes name them; give a group "
            "that begins with rank 0, or none"
        )
    return transport_of(group, timeout_s=timeout_s)


def _as_reshard(plan: object) -> ReshardPlan:
    assert isinstance(plan, ReshardPlan)
    return plan
