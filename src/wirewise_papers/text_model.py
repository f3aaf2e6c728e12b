"""Character-level language model as a list of modules, trained on the package's own sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import wirewise
from wirewise.runtime.pipeline import LayerGraph
from wirewise_papers.pipedream_2bw.job import PipelineJob, module_names

__all__ = ["CHARACTERS", "batches", "language_model", "loss", "text"]

CHARACTERS = 128
"""Number of characters that the model knows, those of ASCII."""

_LEAST_LENGTH = 300_000
_HEADS = 4


class _Embedding(nn.Module):
    """Characters and their places as rows; [n, length] -> [n, length, width]."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.characters(x) + self.places.weight[: x.shape[1]]
        return rows


class _Block(nn.Module):
    """Attention to the characters before, and a layer of each alone; keeps the shape [n, length, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        heads = self.heads(self.before(x)).view(n, length, 3, _HEADS, width // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(found.transpose(1, 2).reshape(n, length, width))
        rows: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.behind(x))))
        return rows


def language_model(job: PipelineJob) -> LayerGraph:
    """Language model with the same weights on all ranks; 0.92 million parameters at width 96 and 8 blocks."""
    state = torch.get_rng_state()
    torch.manual_seed(job.seed)
    blocks = [_Block(job.width) for _ in range(job.blocks)]
    head = nn.Sequential(nn.LayerNorm(job.width), nn.Linear(job.width, CHARACTERS))
    modules = [_Embedding(job.width, job.length), *blocks, head]
    torch.set_rng_state(state)
    return LayerGraph(dict(zip(module_names(job.blocks), modules, strict=True)))


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of the next characters, from [n, length, characters] and [n, length]."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def text() -> Tensor:
    """Concatenated sources of the package as characters, uint8 [characters]."""
    found = bytearray()
    for path in sorted(Path(wirewise.__file__).parent.rglob("*.py")):
        found += path.read_bytes()
        if len(found) >= _LEAST_LENGTH:
            break
    characters = torch.frombuffer(found, dtype=torch.uint8)
    return characters[characters < CHARACTERS]


def batches(job: PipelineJob, replica: int, first: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a replica, independent of earlier training.

    Args:
        job: Sizes and seed.
        replica: Index of the pipeline replica.
        first: Index of the first update.
        count: Number of updates.
    """
    characters, rows = text().long(), job.microbatches * job.microbatch_size
    for update in range(first, first + count):
        random = torch.Generator().manual_seed(job.seed + 7919 * (update * job.replicas + replica) + 1)
        starts = torch.randint(len(characters) - job.length - 1, (rows,), generator=random)
        pieces = torch.stack([characters[start : start + job.length + 1] for start in starts.tolist()])
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()
