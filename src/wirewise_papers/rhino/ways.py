"""Baseline training methods as users write them: DDP, FSDP2, manual tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from wirewise.errors import InputError

__all__ = ["TrainingMethod", "ddp", "fsdp", "is_supported", "manual_tensor_parallel", "parallel_method"]

Columns = Callable[[Tensor, int], Tensor]


class TrainingMethod(Protocol):
    """Training method of a model."""

    def step(self) -> None:
        """Run forward pass, backward pass and optimizer step."""
        ...

    def loss(self) -> float:
        """Loss of the last step, over the whole batch."""
        ...


class _Trained:
    """A model, its optimizer, and what this rank has of the batch.

    Args:
        model: Called with the inputs it gives the loss.
        inputs: This rank's batch.
        learning_rate: Learning rate of SGD.
        shared: Whether each rank has another part of the batch.
    """

    def __init__(
        self, model: nn.Module, inputs: Sequence[Tensor], learning_rate: float, *, shared: bool
    ) -> None:
        self._model, self._inputs, self._shared = model, inputs, shared
        self._optimizer = _sgd(model, learning_rate)
        self._loss = torch.zeros(())
        self.partial: list[nn.Parameter] = []
        """Parameters of whose gradients each rank has a partial sum."""

    def step(self) -> None:
        """Forward pass, backward pass and update of the weights."""
        self._optimizer.zero_grad()
        loss = self._model(*self._inputs)
        loss.backward()
        for parameter in self.partial:
            dist.all_reduce(parameter.grad)
        self._optimizer.step()
        self._loss = loss.detach()

    def loss(self) -> float:
        """Loss of the last step, over the whole batch."""
        found = self._loss.clone()
        if self._shared:
            dist.all_reduce(found)
            found /= dist.get_world_size()
        return float(found)


def _sgd(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    # All parameters at once: DTensors, of which some ways have many, cost a while for each operator.
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, foreach=True)


def is_supported(method: str, model: str) -> bool:
    """Whether a method can train a model: one graph is one sample, and a U-Net has no pairs of layers."""
    return not (model == "gcn" and method in ("ddp", "fsdp", "tag")) and (method, model) != ("tensor", "unet")


def parallel_method(parallel: nn.Module, inputs: Sequence[Tensor], learning_rate: float) -> TrainingMethod:
    """Training under a parallel plan; every rank passes the whole batch."""
    return _Trained(parallel, inputs, learning_rate, shared=False)


def ddp(model: nn.Module, inputs: Sequence[Tensor], learning_rate: float) -> TrainingMethod:
    """DistributedDataParallel with its default buckets."""
    return _Trained(DistributedDataParallel(model), _own(inputs), learning_rate, shared=True)


def fsdp(model: nn.Module, inputs: Sequence[Tensor], learning_rate: float) -> TrainingMethod:
    """FSDP2, each block of the model wrapped separately."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for _, block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _Trained(model, _own(inputs), learning_rate, shared=True)


def _own(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [one.chunk(dist.get_world_size())[dist.get_rank()].contiguous() for one in inputs]


def _blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList):
            yield from child.named_children()
        elif any(True for _ in child.parameters()):
            yield name, child


def manual_tensor_parallel(
    model: nn.Module, inputs: Sequence[Tensor], learning_rate: float
) -> TrainingMethod:
    """Manual tensor parallelism: pairs of layers, column-wise then row-wise, on all ranks with the whole batch.

    Attention by heads, experts by the width inside, convolutions by channels.

    Raises:
        InputError: The model has no such pairs.
    """
    found = _Trained(model, inputs, learning_rate, shared=False)
    if hasattr(model, "blocks"):
        for block in cast(nn.ModuleList, model.blocks):
            found.partial += _split_block(block)
    elif hasattr(model, "wide"):
        _pair(model.first, model.second)
        _pair(model.wide, model.out)
    elif hasattr(model, "layers"):
        first, second = cast(nn.ModuleList, model.layers)
        _pair(first, second)
    else:
        raise InputError(f"{type(model).__name__} has no pairs of layers; expected one that is split by hand")
    # Parts replaced the parameters that the optimizer had.
    found._optimizer = _sgd(model, learning_rate)
    return found


def _split_block(block: Any) -> list[nn.Parameter]:
    """Split attention and what follows it; the parameters of whose gradients each rank has a partial sum."""
    if not hasattr(block, "attention"):
        _pair(block.up, block.down)
        return []
    attention = block.attention
    attention.heads //= dist.get_world_size()
    _columns(attention.qkv, blocks=3)
    _rows(attention.out)
    _around(attention, attention)
    if hasattr(block.mlp, "gate"):
        for name, dim in (("up", 2), ("down", 1)):
            whole = getattr(block.mlp, name).detach()
            setattr(block.mlp, name, nn.Parameter(_part(whole, dim)))
        _around(block.mlp, block.mlp)
        return [block.mlp.gate.weight]
    _pair(block.mlp.up, block.mlp.down)
    return []


def _pair(first: Any, second: Any) -> None:
    _columns(first)
    _rows(second)
    _around(first, second)


def _columns(layer: Any, blocks: int = 1) -> None:
    for name in ("weight", "bias"):
        setattr(layer, name, nn.Parameter(_part(getattr(layer, name).detach(), 0, blocks)))


def _rows(layer: Any) -> None:
    layer.weight = nn.Parameter(_part(layer.weight.detach(), 1))
    if dist.get_rank():
        # One rank adds the bias.
        layer.bias = None


def _part(whole: Tensor, dim: int, blocks: int = 1) -> Tensor:
    found = whole.unflatten(dim, (blocks, -1)).chunk(dist.get_world_size(), dim + 1)[dist.get_rank()]
    return found.flatten(dim, dim + 1).clone()


def _around(first: nn.Module, second: nn.Module) -> None:
    """Add up gradients in front of the first module, and outputs behind the second."""
    copied, summed = _Copied, _Summed
    first.register_forward_pre_hook(lambda _, given: tuple(copied.apply(one) for one in given))  # type: ignore[no-untyped-call]
    second.register_forward_hook(lambda _, given, found: summed.apply(found))  # type: ignore[no-untyped-call]


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad
