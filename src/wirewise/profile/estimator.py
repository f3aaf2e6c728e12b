"""Training of DisCo's estimator of fused regions (TPDS 2022) on measured ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wirewise.errors import InputError
from wirewise.planners.fusion.disco.estimator import HEADS, LAUNCH_S, LAYERS, MOST_LOG, About, Estimator
from wirewise.planners.fusion.disco.features import FEATURES, PRIORS, RegionGraph

__all__ = ["RegionBatch", "RegionNetwork", "batch_of", "fit", "train"]

_DROPOUT = 0.05
"""Fraction of kinds and of states that training hides, so that it learns about operators that it has not seen."""
_BATCH = 96
"""Regions of a step of training."""
_DECAY = 0.1
_START = -0.7
"""Log of the shares at first: about half of each prior."""
_RATE, _RATE_AGAIN = 3e-3, 2e-3
"""Learning rates: from random weights, and from another machine's."""
_DELTA = 0.15
"""Errors of the log beyond this count linearly, so that a few regions that are far off do not rule."""
_LEAST_SEEN = 8
"""Regions that a kind must be in to get a number."""


class RegionBatch(NamedTuple):
    """Batch of b regions, padded to n nodes each."""

    nodes: Tensor
    """Node features, [b, n, FEATURES]."""
    kinds: Tensor
    """Numbers of kinds, [b, n]."""
    reads: Tensor
    """Whether a node (row) reads another (column), [b, n, n]."""
    prior_s: Tensor
    """Prior estimates of each node, [b, n, PRIORS]."""


def batch_of(regions: Sequence[RegionGraph], numbers: dict[str, int]) -> RegionBatch:
    """Pad regions to the same number of nodes and batch them.

    Args:
        regions: Regions to pad.
        numbers: Index of each kind; others have index 0.
    """
    n = max(len(one.kinds) for one in regions)
    nodes = torch.zeros(len(regions), n, FEATURES)
    kinds = torch.zeros(len(regions), n, dtype=torch.int64)
    reads = torch.zeros(len(regions), n, n, dtype=torch.bool)
    prior = torch.zeros(len(regions), n, PRIORS)
    for row, one in enumerate(regions):
        own = len(one.kinds)
        nodes[row, :own] = torch.from_numpy(one.nodes)
        kinds[row, :own] = torch.tensor([numbers.get(kind, 0) for kind in one.kinds])
        reads[row, :own, :own] = torch.from_numpy(one.reads)
        prior[row, :own] = torch.from_numpy(one.prior_s)
    return RegionBatch(nodes, kinds, reads, prior)


class RegionNetwork(nn.Module):
    """Six layers of graph attention, three dense layers that give each node's fractions of its priors, and their sum.

    In the paper the sum comes before the dense layers; a network of this size then overfitted.

    Args:
        kinds: Number of kinds, including 0.
        width: Width of a node's state; a multiple of the number of heads.
        dropout: Fraction of kinds and of states to drop in training.
    """

    def __init__(self, kinds: int, width: int = 48, dropout: float = _DROPOUT) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, width)
        self.kind = nn.Embedding(kinds, width)
        self.mix = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.reader = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(LAYERS))
        self.source = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(LAYERS))
        self.dense = nn.ModuleList(nn.Linear(width, n) for n in (width, width, PRIORS))
        self.launch = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.kind.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        weight, bias = self.dense[-1].parameters()
        nn.init.zeros_(weight)
        nn.init.constant_(bias, _START)

    def forward(self, batch: RegionBatch) -> Tensor:
        """Predict log seconds, [b]."""
        state = self.dropout(functional.elu(self.enter(batch.nodes) + self.kind(batch.kinds)))
        own = torch.eye(state.shape[1], dtype=torch.bool)
        seen = torch.stack([batch.reads | own, batch.reads.transpose(1, 2) | own], 1)
        seen = seen.repeat_interleave(HEADS // 2, 1)
        for layer in range(LAYERS):
            state = state + self.dropout(self._attend(layer, state, seen))
        for dense in self.dense[:-1]:
            state = functional.relu(dense(state))
        shares = (MOST_LOG * torch.tanh(self.dense[-1](state) / MOST_LOG)).exp()
        return (LAUNCH_S * self.launch.exp() + (shares * batch.prior_s).sum((1, 2))).log()

    def _attend(self, layer: int, state: Tensor, seen: Tensor) -> Tensor:
        heads = self.mix[layer](state).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        to, of = (p[layer].view(HEADS, 1, -1) for p in (self.reader, self.source))
        scores = (heads * to).sum(-1)[..., None] + (heads * of).sum(-1)[..., None, :]
        scores = functional.leaky_relu(scores, 0.2).masked_fill(~seen, -1e9)
        found = scores.softmax(-1) @ heads
        return functional.elu(found.transpose(1, 2).flatten(-2))


def train(
    network: RegionNetwork,
    regions: Sequence[RegionGraph],
    seconds: Sequence[float],
    numbers: dict[str, int],
    *,
    epochs: int = 60,
    batch: int = _BATCH,
    rate: float = _RATE,
    seed: int = 0,
) -> Iterator[float]:
    """Minimise the Huber error of the log time by Adam; yields the error of each epoch."""
    random = np.random.default_rng(seed)
    target = torch.tensor(seconds, dtype=torch.float32).log()
    chunks = _batches(regions, batch)
    network.train()
    prepared = [(batch_of([regions[i] for i in chunk], numbers), target[chunk]) for chunk in chunks]
    optimizer: Any = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * len(prepared))
    for _ in range(epochs):
        total = 0.0
        for i in random.permutation(len(prepared)).tolist():
            inputs, expected = prepared[i]
            optimizer.zero_grad()
            hidden = torch.rand(inputs.kinds.shape) < network.dropout.p
            inputs = inputs._replace(kinds=inputs.kinds.masked_fill(hidden, 0))
            loss = functional.huber_loss(network(inputs), expected, delta=_DELTA)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(expected)
        yield total / len(regions)


def _batches(regions: Sequence[RegionGraph], size: int) -> list[list[int]]:
    """Regions of about the same number of nodes together, otherwise mixed."""
    mixed = np.random.default_rng(0).permutation(len(regions))
    order = sorted(mixed.tolist(), key=lambda i: len(regions[i].kinds))
    return [order[i : i + size] for i in range(0, len(order), size)]


def fit(
    regions: Sequence[RegionGraph],
    seconds: Sequence[float],
    *,
    machine: str,
    device: str = "cpu",
    members: int = 3,
    epochs: int = 60,
    batch: int = _BATCH,
    dropout: float = _DROPOUT,
    seed: int = 0,
    start: Estimator | None = None,
) -> Estimator:
    """Train an estimator on measured regions.

    Args:
        regions: Regions as the network sees them.
        seconds: Measured seconds of each region.
        machine: Description of the machine of the measurements.
        device: Type of the device, such as "cpu".
        members: Number of networks, which differ in their random initialisation.
        epochs: Number of passes over the regions.
        batch: Number of regions per training step.
        dropout: Fraction of kinds and of states to drop in training; 0 if predicted regions are of the same models.
        seed: Seed of weights and order.
        start: Estimator of another machine, whose networks are fine-tuned and define their number.

    Raises:
        InputError: There are no regions, or not one time per region.
    """
    if not regions or len(regions) != len(seconds):
        raise InputError(f"got {len(regions)} regions and {len(seconds)} times; expected as many, and some")
    seen = Counter(kind for region in regions for kind in set(region.kinds))
    kinds = start.about.kinds if start else ()
    kinds += tuple(sorted(kind for kind, n in seen.items() if n >= _LEAST_SEEN and kind not in kinds))
    numbers = {kind: number for number, kind in enumerate(kinds, 1)}
    members = start.about.members if start else members
    rate = _RATE_AGAIN if start else _RATE
    weights: dict[str, Any] = {}
    for member in range(members):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + member)
            network = (
                _started(start, member, kinds, dropout)
                if start
                else RegionNetwork(len(kinds) + 1, dropout=dropout)
            )
            order = seed + member
            for _ in train(
                network, regions, seconds, numbers, epochs=epochs, batch=batch, rate=rate, seed=order
            ):
                pass
        weights |= {f"{member}.{name}": value.numpy() for name, value in network.state_dict().items()}
    about = About(
        device=device,
        machine=machine,
        compiler=f"torch {torch.__version__}, Inductor",
        kinds=kinds,
        members=members,
        regions=len(regions),
    )
    return Estimator(about, weights)


def _started(start: Estimator, member: int, kinds: tuple[str, ...], dropout: float) -> RegionNetwork:
    """One of an estimator's networks; kinds that it does not know begin as unknown ones."""
    state = {name: torch.from_numpy(value) for name, value in start.weights_of(member).items()}
    known = state["kind.weight"]
    state["kind.weight"] = torch.cat([known, known[:1].repeat(len(kinds) + 1 - len(known), 1)])
    network = RegionNetwork(len(kinds) + 1, width=known.shape[1], dropout=dropout)
    network.load_state_dict(state)
    return network
