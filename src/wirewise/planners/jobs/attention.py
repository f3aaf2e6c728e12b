"""The network of TapFinger: attention over clusters, waiting and running jobs, a pointer, and amounts.

Y. Li, T. Zeng, X. Zhang, J. Duan, C. Wu: TapFinger, INFOCOM 2023; X. Wang et al.: Heterogeneous Graph Attention
Network, WWW 2019; O. Vinyals et al.: Pointer Networks, NeurIPS 2015. Unlike in the paper, kinds of jobs are described
by their tables and not by their numbers, so that unseen kinds can be scheduled; layers are residual; and only amounts
faster than any smaller one are scored, by their effect on the job and on free resources, so that clusters may have
any size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from wirewise.sim.jobs.views import ACTIVE, CLUSTER, OPTIONS, PENDING

__all__ = ["ObservationTensors", "TapFinger"]

_CLUSTERS, _PENDING, _ACTIVES, _CENTRAL = "cluster", "pending", "active", "central"
_RELATIONS = (
    (_PENDING, _CLUSTERS), (_ACTIVES, _CLUSTERS), (_CENTRAL, _CLUSTERS), (_CLUSTERS, _PENDING), (_CLUSTERS, _ACTIVES),
    (_CLUSTERS, _CENTRAL),
)  # fmt: skip
"""Kinds of nodes that look from and to each other."""
_MOVED = 3.0
"""How far the embedding of a cluster moves with that of its own features, chosen on queues that no page judges by."""


class ObservationTensors(NamedTuple):
    """Observation of E queues as tensors; see `wirewise.sim.jobs.views.Views`."""

    cluster: Tensor
    pending: Tensor
    adjacent: Tensor
    window: Tensor
    active: Tensor
    runs: Tensor


class _Attention(nn.Module):
    """Attention along one relation, [E, N, d] to [E, M, d]."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.source = nn.Parameter(torch.randn(heads, width // heads) / width**0.5)
        self.target = nn.Parameter(torch.randn(heads, width // heads) / width**0.5)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        keys = source.unflatten(-1, (self.heads, -1))
        of_source = (keys * self.source).sum(-1)
        of_target = (target.unflatten(-1, (self.heads, -1)) * self.target).sum(-1)
        scores = nn.functional.leaky_relu(of_target[:, :, None] + of_source[:, None], 0.2)
        scores = scores.masked_fill(~mask[..., None], -1e9)
        # A node without neighbours gets nothing, not their mean.
        weights = torch.softmax(scores, 2) * mask[..., None]
        return torch.relu(torch.einsum("emnh,enhd->emhd", weights, keys).flatten(-2))


class _Layer(nn.Module):
    """Node-level attention along each relation, then semantic attention over the relations into a kind of node."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        kinds = (_CLUSTERS, _PENDING, _ACTIVES, _CENTRAL)
        self.inside = nn.ModuleDict({kind: nn.Linear(width, width) for kind in kinds})
        self.along = nn.ModuleDict({f"{a}_{b}": _Attention(width, heads) for a, b in _RELATIONS})
        self.semantic = nn.Linear(width, width)
        self.query = nn.Parameter(torch.randn(width) / width**0.5)
        self.norm = nn.ModuleDict({kind: nn.LayerNorm(width) for kind in kinds})

    def forward(self, nodes: dict[str, Tensor], masks: dict[tuple[str, str], Tensor]) -> dict[str, Tensor]:
        inside = {kind: self.inside[kind](x) for kind, x in nodes.items()}
        into: dict[str, list[Tensor]] = {kind: [] for kind in nodes}
        for a, b in _RELATIONS:
            into[b].append(self.along[f"{a}_{b}"](inside[a], inside[b], masks[a, b]))
        mixed = {}
        for kind, found in into.items():
            stacked = torch.stack(found)
            shares = torch.softmax(
                (torch.tanh(self.semantic(stacked)) @ self.query).mean(dim=-1, keepdim=True), 0
            )
            mixed[kind] = self.norm[kind](nodes[kind] + (shares[..., None] * stacked).sum(0))
        return mixed


class TapFinger(nn.Module):
    """Network with scores of a window's jobs, scores of amounts for a job, and a state value for each cluster.

    Args:
        width: Width of embeddings.
        heads: Number of attention heads.
        layers: Number of attention layers over the graph.
    """

    def __init__(self, width: int = 64, heads: int = 2, layers: int = 2):
        super().__init__()
        sizes = {_CLUSTERS: CLUSTER, _PENDING: PENDING, _ACTIVES: ACTIVE}
        self.embed = nn.ModuleDict({kind: nn.Linear(size, width) for kind, size in sizes.items()})
        self.central = nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.of_query, self.of_job, self.point = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
        )
        self.of_pair, self.of_option, self.score = (
            nn.Linear(2 * width, width),
            nn.Linear(OPTIONS, width),
            nn.Linear(width, 1),
        )
        self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def embeddings(self, observation: ObservationTensors) -> tuple[Tensor, Tensor]:
        """Embeddings of clusters, [E, A, d], and of the jobs in their windows, [E, A, W, d]."""
        queues, clusters, _ = observation.adjacent.shape
        most = observation.runs.shape[2]
        nodes = {
            _CLUSTERS: torch.relu(self.embed[_CLUSTERS](observation.cluster)),
            _PENDING: torch.relu(self.embed[_PENDING](observation.pending)),
            _ACTIVES: torch.relu(self.embed[_ACTIVES](observation.active)).flatten(1, 2),
            _CENTRAL: self.central.expand(queues, 1, -1),
        }
        own = torch.eye(clusters, dtype=torch.bool)[:, :, None].expand(-1, -1, most)
        held = (own & observation.runs[:, None]).flatten(2)
        all_of = torch.ones(queues, clusters, 1, dtype=torch.bool)
        masks = {
            (_PENDING, _CLUSTERS): observation.adjacent,
            (_ACTIVES, _CLUSTERS): held,
            (_CENTRAL, _CLUSTERS): all_of,
            (_CLUSTERS, _PENDING): observation.adjacent.transpose(1, 2),
            (_CLUSTERS, _ACTIVES): held.transpose(1, 2),
            (_CLUSTERS, _CENTRAL): all_of.transpose(1, 2),
        }
        for layer in self.layers:
            nodes = layer(nodes, masks)
        at = observation.window.clamp(min=0).flatten(1)
        jobs = torch.gather(nodes[_PENDING], 1, at[..., None].expand(-1, -1, nodes[_PENDING].shape[-1]))
        return nodes[_CLUSTERS], jobs.unflatten(1, observation.window.shape[1:])

    def moved(self, clusters: Tensor, before: Tensor, now: Tensor) -> Tensor:
        """Update embeddings of clusters whose own features changed, without attention to jobs, [E, A, d].

        Args:
            clusters: Cluster embeddings before the change, [E, A, d].
            before: Cluster features before the change, as in `ObservationTensors`.
            now: Cluster features after the change.
        """
        own = self.embed[_CLUSTERS]
        return clusters + _MOVED * (torch.relu(own(now)) - torch.relu(own(before)))

    def pointers(self, clusters: Tensor, jobs: Tensor, window: Tensor) -> Tensor:
        """Log-probabilities of a window's jobs, [E, A, W]; -1e9 for empty positions."""
        empty = window < 0
        # A window without jobs would have nobody to attend to.
        hidden = empty & ~empty.all(-1, keepdim=True)
        encoded = self.encoder(
            (jobs + clusters[:, :, None]).flatten(0, 1), src_key_padding_mask=hidden.flatten(0, 1)
        ).unflatten(0, window.shape[:2])
        there = (~empty)[..., None]
        query = (encoded * there).sum(2) / there.sum(2).clamp(min=1) + clusters
        scores = self.point(torch.tanh(self.of_query(query)[:, :, None] + self.of_job(encoded))).squeeze(-1)
        return torch.log_softmax(scores.masked_fill(empty, -1e9), -1)

    def amounts(self, clusters: Tensor, jobs: Tensor, options: Tensor, legal: Tensor) -> Tensor:
        """Log-probabilities of amounts for the chosen job of each cluster, [E, A, O].

        Args:
            clusters: Cluster embeddings, [E, A, d].
            jobs: Embeddings of the chosen jobs, [E, A, d].
            options: Features of amounts, [E, A, O, OPTIONS].
            legal: Mask of feasible amounts, [E, A, O].
        """
        pair = self.of_pair(torch.cat([clusters, jobs], -1))[:, :, None]
        scores = self.score(torch.tanh(pair + self.of_option(options))).squeeze(-1)
        return torch.log_softmax(scores.masked_fill(~legal, -1e9), -1)
