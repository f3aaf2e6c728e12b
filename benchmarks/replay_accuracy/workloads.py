"""Small training jobs for the lab: models on virtual accelerators, and real ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.lab import VirtualLayer

MB = 1e6


class Work(msgspec.Struct, kw_only=True):
    """One job of a worker."""

    folder: str
    """Takes the traces; empty: not traced."""
    model: str
    """A name of VIRTUAL or REAL."""
    bucket_mb: float = 0.5
    warmup: int = 4
    steps: int = 40
    jitter: float = 0.02
    """Standard deviation of the time that a rank computes in a step, relative."""
    slow_rank: int = -1
    slow_factor: float = 1.0
    data_s: float = 0.0
    """Seconds that the loader takes for each batch."""
    communicate: bool = True
    """False: gradients stay on their ranks."""
    paused: bool = False
    """Wait for the others before each step, so that no rank runs ahead."""
    algorithm: str = ""
    """Algorithm of a program or a compressed sum in the place of DistributedDataParallel (`programs`)."""
    servers: int = 1


# (parameters, forward s, backward s) of each layer; sizes in the order of the forward pass.
VIRTUAL: dict[str, list[tuple[int, float, float]]] = {
    "mlp": [(64_000, 0.006, 0.012)] * 6,
    "cnn": [(4_000 * 2 ** (i // 2), 0.007, 0.014) for i in range(12)],
    "transformer": [(160_000, 0.002, 0.004), *[(30_000, 0.006, 0.012)] * 8],
    "gnn": [(20_000, 0.015, 0.030)] * 3,
}
HALO_ROWS, HALO_WIDTH = 1_500, 64
"""Rows that a part of the graph gets from all others before each layer, and their width."""


class Halo(nn.Module):
    """Sends rows to all other ranks before a layer, and their gradients back."""

    def __init__(self) -> None:
        super().__init__()
        ranks = dist.get_world_size()
        rows = HALO_ROWS // ranks * ranks
        self.rows = torch.zeros(rows, HALO_WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return _Exchange.apply(x, self.rows)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rows):
        ctx.rows = rows
        dist.all_to_all_single(torch.empty_like(rows), rows)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        dist.all_to_all_single(torch.empty_like(ctx.rows), ctx.rows)
        return grad, None


class RealMlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*[part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())])
        self.batch = (192, 512)


class RealCnn(nn.Sequential):
    def __init__(self) -> None:
        widths = [3, 16, 32, 64, 128]
        parts = [
            part
            for a, b in itertools.pairwise(widths)
            for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        ]
        super().__init__(*parts, nn.Flatten(), nn.Linear(128 * 4, 512), nn.ReLU(), nn.Linear(512, 10))
        self.batch = (16, 3, 32, 32)


class RealTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
        self.inside = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 512)
        self.batch = (4, 64, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inside(x))


REAL = {"real-mlp": RealMlp, "real-cnn": RealCnn, "real-transformer": RealTransformer}


def make(work: Work) -> tuple[nn.Module, tuple[int, ...]]:
    """Model and the shape of its input."""
    torch.manual_seed(0)
    if work.model in REAL:
        model = REAL[work.model]()
        return model, model.batch
    parts: list[nn.Module] = []
    for size, forward_s, backward_s in VIRTUAL[work.model]:
        if work.model == "gnn":
            parts.append(Halo())
        parts.append(VirtualLayer(size, forward_s=forward_s, backward_s=backward_s))
    return nn.Sequential(*parts), (4, 4)


def speeds(work: Work, model: nn.Module, rank: int) -> Iterator[None]:
    """Sets the times of virtual layers anew for each step."""
    layers = [part for part in model.modules() if isinstance(part, VirtualLayer)]
    own = [(part.forward_s, part.backward_s) for part in layers]
    random = torch.Generator().manual_seed(1 + rank)
    slow = work.slow_factor if rank == work.slow_rank else 1.0
    while True:
        factor = slow * max(1.0 + work.jitter * float(torch.randn((), generator=random)), 0.5)
        for part, (forward_s, backward_s) in zip(layers, own, strict=True):
            part.forward_s, part.backward_s = factor * forward_s, factor * backward_s
        yield


class Batches(torch.utils.data.Dataset):
    """Batches that take `seconds` each to make."""

    def __init__(self, shape: tuple[int, ...], count: int, seconds: float) -> None:
        self.shape, self.count, self.seconds = shape, count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(index), requires_grad=True)
