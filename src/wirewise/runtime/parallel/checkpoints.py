"""Shards of parallel models in the format of `torch.distributed.checkpoint`.

torch takes a rank's shard for one block of the whole tensor. A shard that a plan cuts within blocks, such as those of
query, key and value in one matrix, is several: they are named one by one, so that a checkpoint has whole tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.plans.parallel import DimPlacement
from wirewise.runtime.parallel.parts import part_of_mesh

__all__ = ["checkpointable"]

State = TypeVar("State")


def checkpointable(state: State) -> State:
    """Make all shards of a state, such as an optimizer's, loadable and savable by `torch.distributed.checkpoint`.

    `ParallelModel.state_dict()` is such a state already.

    Args:
        state: Nested tensors, changed in place and returned.

    Raises:
        InputError: The state is of an optimizer that numbers the parameters of one of several stages.
    """
    _check_names(state)
    for leaf in pytree.tree_leaves(state):
        if isinstance(leaf, DTensor):
            shards: Any = leaf
            shards.__create_write_items__ = _write_items
            shards.__create_chunk_list__ = partial(_chunks, leaf)
            shards.__get_tensor_shard__ = partial(_shard, leaf)
    return state


def _check_names(state: Any) -> None:
    """Raise InputError for numbers of parameters that mean others on the ranks of other stages."""
    of = state.get("state") if isinstance(state, dict) else None
    if not isinstance(of, dict) or not any(isinstance(key, int) for key in of):
        return
    meshes: list[Any] = [leaf.device_mesh for leaf in pytree.tree_leaves(of) if isinstance(leaf, DTensor)]
    if any(mesh.size() < dist.get_world_size() for mesh in meshes):
        raise InputError(
            "the optimizer's state has parameters by their number, and each stage counts its own: a checkpoint would "
            "have one of them for all. Expected names: torch.distributed.checkpoint.state_dict."
            "get_optimizer_state_dict(model, optimizer), and set_optimizer_state_dict to load it"
        )


def _blocks(tensor: DTensor) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Blocks of the whole tensor that this rank has: where they begin there and in its part, and their sizes."""
    runs = [list(_runs(tensor, dim, size)) for dim, size in enumerate(tensor.shape)]
    for block in itertools.product(*runs):
        first, local, size = zip(*block, strict=True) if block else ((), (), ())
        yield tuple(first), tuple(local), tuple(size)


def _runs(tensor: DTensor, dim: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Elements of a dimension that follow each other: the first one, its place in this rank's part, their number."""
    mesh: Any = tensor.device_mesh
    along = tuple(
        DimPlacement("S", 0, getattr(one, "split_factor", 1))
        if isinstance(one, Shard | _StridedShard) and one.dim == dim
        else DimPlacement("R")
        for one in tensor.placements
    )
    own = part_of_mesh(torch.arange(size), along, tuple(mesh.shape), tuple(mesh.get_coordinate())).tolist()
    begin = 0
    for place in range(1, len(own) + 1):
        if place == len(own) or own[place] != own[place - 1] + 1:
            yield own[begin], begin, place - begin
            begin = place


def _chunks(tensor: DTensor) -> list[ChunkStorageMetadata]:
    return [
        ChunkStorageMetadata(offsets=torch.Size(first), sizes=torch.Size(size))
        for first, _, size in _blocks(tensor)
    ]


def _write_items(name: str, tensor: DTensor) -> list[WriteItem]:
    properties = TensorProperties.create_from_tensor(tensor._local_tensor)
    return [
        WriteItem(
            index=MetadataIndex(name, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=tensor.size()),
        )
        for chunk in _chunks(tensor)
    ]


def _shard(tensor: DTensor, index: MetadataIndex) -> Tensor:
    """The part of this rank's shard that a block is, as a view."""
    found = tensor._local_tensor
    for first, local, size in _blocks(tensor):
        if index.offset is None or torch.Size(first) == index.offset:
            for dim, (begin, length) in enumerate(zip(local, size, strict=True)):
                found = found.narrow(dim, begin, length)
            return found
    raise ValueError(f"{index.fqn} has no block at {index.offset}; expected one of {_chunks(tensor)}")
