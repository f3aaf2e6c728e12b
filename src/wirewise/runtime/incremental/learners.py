"""Learners of one task after another: the network, the common training step, joint training, and rehearsal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from wirewise.graph.ops import Csr, aggregate, sparse_linear
from wirewise.graph.rehearsal import Candidates, GrowingGraph, balanced_accuracy, matched_weights, select
from wirewise.graph.rehearsal.settings import Method, Settings
from wirewise.runtime.incremental.graphs import Block, CurrentGraph
from wirewise.runtime.incremental.peers import Peers

__all__ = ["Gcn", "JointTraining", "Learner", "Rehearsal", "RehearsedNodes", "WeightedNodes", "sample_losses"]


class Gcn(nn.Module):
    """The network of CGLB: a two-layer graph convolutional network (Kipf, Welling 2017) without biases.

    A node's embedding is the aggregated input of the second convolution, which depends on two hops.

    Args:
        features: Width of an input row.
        hidden: Width of embeddings.
        classes: Number of classes of all tasks.
        seed: Seed of the initial weights.
    """

    def __init__(self, features: int, hidden: int, classes: int, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.first = _weight(hidden, features, random)
        self.second = _weight(classes, hidden, random)

    def embed(self, block: Block) -> Float[Tensor, "n hidden"]:
        """Embeddings of the block's nodes, in their order."""
        x = block.features
        hidden = sparse_linear(x, self.first, None) if isinstance(x, Csr) else linear(x, self.first)
        return aggregate(block.adjacency, hidden.relu())

    def scores(self, embedding: Float[Tensor, "n hidden"]) -> Float[Tensor, "n classes"]:
        """Class scores of embedded nodes."""
        return linear(embedding, self.second)

    def forward(self, block: Block) -> Float[Tensor, "n classes"]:
        """Class scores of the block's nodes."""
        return self.scores(self.embed(block))


def sample_losses(
    scores: Float[Tensor, "n classes"], labels: Int[Tensor, " n"], allowed: Bool[Tensor, "n classes"]
) -> Float[Tensor, " n"]:
    """Cross entropy of each node among its allowed classes."""
    return cross_entropy(scores.masked_fill(~allowed, -torch.inf), labels, reduction="none")


def _weight(rows: int, columns: int, random: torch.Generator) -> nn.Parameter:
    """Uniform by Glorot's rule."""
    bound = (6 / (rows + columns)) ** 0.5
    return nn.Parameter((2 * torch.rand(rows, columns, generator=random) - 1) * bound)


class WeightedNodes(NamedTuple):
    """Nodes of a loss, with a weight for each; n nodes."""

    nodes: NDArray[np.int64]
    """Node ids, [n]."""
    weights: NDArray[np.float64]
    """Factor of each node's own loss, [n]."""


class RehearsedNodes(NamedTuple):
    """Nodes of a learnt task rehearsed by this rank."""

    nodes: NDArray[np.int64]
    then: Block
    """Neighbourhood of the nodes at the time when the task was learnt."""
    size: int
    """Number of nodes of the task kept by all ranks."""


class Learner:
    """Fine-tuning: learns each task on the current graph, without regard to earlier ones.

    Args:
        method: Selection and weighting of kept nodes, if any.
        growing_graph: The graph and its tasks.
        settings: Settings of model and training.
        peers: Ranks that train together.
    """

    def __init__(
        self, method: Method, growing_graph: GrowingGraph, settings: Settings, peers: Peers | None = None
    ) -> None:
        data = growing_graph.data
        self.method, self.growing_graph, self.settings = method, growing_graph, settings
        self.peers = peers or Peers()
        self.model = Gcn(data.num_features, settings.hidden, data.num_classes, settings.seed)
        optimizer = torch.optim.Adam if settings.decay == "l2" else torch.optim.AdamW
        self.optimizer = optimizer(
            self.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.reducer = self.peers.reducer(self.model)
        self.labels = torch.from_numpy(data.y).long()
        self._task_of_class = torch.from_numpy(growing_graph.task_of_class)

    def learn(self, graph: CurrentGraph) -> None:
        """Learn the task of the current graph."""
        parts = self.rows(graph)
        nodes = np.concatenate([part.nodes for part in parts])
        weights = torch.from_numpy(np.concatenate([part.weights for part in parts])).float()
        block = graph.block(nodes) if len(nodes) else None
        self.begin(graph)
        for _ in range(self.settings.epochs):
            self.optimizer.zero_grad()
            if self.reducer is not None:
                self.reducer.begin()
            if block is not None:
                embedding = self.model.embed(block)
                scores = self.model.scores(embedding)
                loss = (weights * self.losses(scores, nodes, graph.task)).sum()
                (loss + self.penalty(embedding, scores, len(parts[0].nodes))).backward()
            if self.reducer is not None:
                # A rank without nodes adds zeros.
                self.reducer.finish()
            self.adjust()
            self.optimizer.step()
        self.end(graph)

    def rows(self, graph: CurrentGraph) -> list[WeightedNodes]:
        """Nodes of the loss, the new task first."""
        return [self._balanced(graph.task)]

    def begin(self, graph: CurrentGraph) -> None:
        """Prepare to learn a task; a hook for subclasses."""

    def penalty(self, embedding: Tensor, scores: Tensor, new: int) -> Tensor | float:
        """Term added to the loss of a step; the first `new` rows are of the new task."""
        return 0.0

    def adjust(self) -> None:
        """Modify the gradients of a step."""

    def end(self, graph: CurrentGraph) -> None:
        """Finish learning a task; a hook for subclasses."""

    def losses(self, scores: Tensor, nodes: NDArray[np.int64], task: int) -> Tensor:
        """Loss of each node among the classes of its task, or among those of all tasks so far, [n]."""
        return sample_losses(scores, self.labels[nodes], self.allowed(nodes, task))

    def allowed(self, nodes: NDArray[np.int64], task: int) -> Tensor:
        """Classes considered for each node, bool [n, C]."""
        if self.settings.setting == "task":
            return self._task_of_class == torch.from_numpy(self.growing_graph.arrival[nodes])[:, None]
        among = (self._task_of_class >= 0) & (self._task_of_class <= task)
        return among.expand(len(nodes), -1)

    @torch.no_grad()
    def accuracies(self, graph: CurrentGraph) -> list[float]:
        """Class-balanced accuracy on the test nodes of every task so far, on the current graph."""
        tests = [task.test for task in self.growing_graph.tasks[: graph.task + 1]]
        nodes = np.concatenate(tests)
        block = graph.kept("test", lambda: graph.block(nodes))
        scores = self.model(block).masked_fill(~self.allowed(nodes, graph.task), -torch.inf)
        found = np.split(scores.argmax(dim=1).numpy(), np.cumsum([len(test) for test in tests])[:-1])
        return [
            balanced_accuracy(f, self.growing_graph.data.y[test])
            for f, test in zip(found, tests, strict=True)
        ]

    @torch.no_grad()
    def embedded(self, block: Block) -> NDArray[np.float32]:
        """Embeddings of a block's nodes, [n, hidden]."""
        return self.model.embed(block).numpy()

    def _balanced(self, task: int) -> WeightedNodes:
        """This rank's training nodes of a task; every class weighs the same over all ranks."""
        everyone = self.growing_graph.tasks[task].train
        count = np.bincount(
            self.growing_graph.data.y[everyone], minlength=self.growing_graph.data.num_classes
        )
        mine = self.peers.own_nodes(everyone)
        return WeightedNodes(
            mine, 1 / (count[self.growing_graph.data.y[mine]] * len(self.growing_graph.tasks[task].classes))
        )


class JointTraining(Learner):
    """Joint training on the training nodes of all tasks so far."""

    def rows(self, graph: CurrentGraph) -> list[WeightedNodes]:
        """Nodes of all tasks so far, with equal weights."""
        parts = [self._balanced(task) for task in range(graph.task, -1, -1)]
        return [WeightedNodes(part.nodes, part.weights / len(parts)) for part in parts]


class Rehearsal(Learner):
    """Rehearsal of kept nodes on the current graph, with individual weights (ER-GNN, SEA-ER)."""

    def __init__(
        self, method: Method, growing_graph: GrowingGraph, settings: Settings, peers: Peers | None = None
    ) -> None:
        super().__init__(method, growing_graph, settings, peers)
        self.kept: list[RehearsedNodes] = []

    def rows(self, graph: CurrentGraph) -> list[WeightedNodes]:
        """The new task, then every old one; `mixing` sets whether old tasks weigh one together or one each."""
        matched = self.matched(graph) if self.method.matched and self.kept else None
        together = len(self.kept) if self.settings.mixing == "mean" else 1
        parts = super().rows(graph)
        for number, kept in enumerate(self.kept):
            b = np.ones(len(kept.nodes)) if matched is None else matched[number]
            parts.append(WeightedNodes(kept.nodes, b / (kept.size * together)))
        return parts

    def end(self, graph: CurrentGraph) -> None:
        """Keep some of the task's nodes, with their current neighbourhoods."""
        nodes = self.keep(graph)
        size = int(self.peers.total(np.array([float(len(nodes))]))[0])
        self.kept.append(RehearsedNodes(nodes, graph.block(nodes), size))

    def keep(self, graph: CurrentGraph) -> NDArray[np.int64]:
        """Select this rank's training nodes of the task to keep, within the budget of each class."""
        task = self.growing_graph.tasks[graph.task]
        mine = self.peers.own_nodes(task.train)
        if not len(mine):
            return mine
        rows, label = self.embedded(graph.block(mine)), self.growing_graph.data.y[mine]
        found = [mine[:0]]
        for number in task.classes:
            everyone = task.train[self.growing_graph.data.y[task.train] == number]
            share, own = self.peers.share(everyone, self.settings.budget), label == number
            if share:
                seed = np.random.SeedSequence([self.settings.seed, number, self.peers.rank]).generate_state(1)
                pool = Candidates(graph.edges, mine[own], rows[own], rows[~own], int(seed[0]))
                found.append(select(self.method.selection, pool, share))
        return np.concatenate(found)

    def matched(self, graph: CurrentGraph) -> list[NDArray[np.float64]]:
        """Matched weights of the kept nodes of each old task, [kept] each.

        Their embeddings under the graph structure when they were kept are matched with those of all training nodes of
        their task under the current structure, both by the current network.
        """
        own = [self.peers.own_nodes(task.train) for task in self.growing_graph.tasks[: graph.task]]
        block = graph.kept("old", lambda: graph.block(np.concatenate(own)))
        now = np.split(self.embedded(block), np.cumsum([len(nodes) for nodes in own])[:-1])
        return [self._matched(kept, x) for kept, x in zip(self.kept, now, strict=True)]

    def _matched(self, kept: RehearsedNodes, now: NDArray[np.float32]) -> NDArray[np.float64]:
        then = self.embedded(kept.then) if len(kept.nodes) else now[:0]
        label = self.growing_graph.data.y[kept.nodes]
        # The class travels as one more column.
        both, own = self.peers.gather(np.column_stack([then, label]).astype(np.float64))
        weights = matched_weights(
            both[:, :-1],
            now.astype(np.float64),
            kernel=self.settings.kernel,
            maximum=self.settings.most,
            groups=both[:, -1].astype(np.int64) if self.settings.balanced else None,
            total=self.peers.total,
        )
        return weights[own]
