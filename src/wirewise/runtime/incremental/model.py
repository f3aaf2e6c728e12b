"""The network of CGLB: a graph convolutional network of two layers (Kipf, Welling 2017), which has no biases."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from wirewise.graph.ops import Csr, aggregate, sparse_linear
from wirewise.runtime.incremental.graphs import Block

__all__ = ["Gcn", "sample_losses"]


class Gcn(nn.Module):
    """Two convolutions; what the second one sums is a vertex's embedding, which depends on two hops.

    Args:
        features: Width of an input row.
        hidden: Width of embeddings.
        classes: Classes of all tasks.
        seed: Seed of the first weights.
    """

    def __init__(self, features: int, hidden: int, classes: int, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.first = _weight(hidden, features, random)
        self.second = _weight(classes, hidden, random)

    def embed(self, block: Block) -> Float[Tensor, "n hidden"]:
        """Embeddings of the block's vertices, in their order."""
        x = block.features
        hidden = sparse_linear(x, self.first, None) if isinstance(x, Csr) else linear(x, self.first)
        return aggregate(block.adjacency, hidden.relu())

    def scores(self, embedding: Float[Tensor, "n hidden"]) -> Float[Tensor, "n classes"]:
        """Scores of embedded vertices."""
        return linear(embedding, self.second)

    def forward(self, block: Block) -> Float[Tensor, "n classes"]:
        """Scores of the block's vertices."""
        return self.scores(self.embed(block))


def sample_losses(
    scores: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], allowed: Bool[Tensor, "n classes"]
) -> Float[Tensor, " n"]:
    """Cross entropy of each vertex among the classes that are allowed for it."""
    return cross_entropy(scores.masked_fill(~allowed, -torch.inf), labels, reduction="none")


def _weight(rows: int, columns: int, random: torch.Generator) -> nn.Parameter:
    """Uniform by Glorot's rule."""
    bound = (6 / (rows + columns)) ** 0.5
    return nn.Parameter((2 * torch.rand(rows, columns, generator=random) - 1) * bound)
