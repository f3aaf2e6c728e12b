"""Regularised learners: constraints by old gradients, old parameters, old answers, and old embeddings."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

from wirewise.runtime.incremental.graphs import Block, CurrentGraph
from wirewise.runtime.incremental.learners import Learner, Rehearsal, WeightedNodes

__all__ = ["Ewc", "Gem", "Lwf", "Ssrm", "mean_discrepancy", "nearest_gradient"]

_DRAWS = 16
_SWEEPS = 100
_RATES = (1.0, 0.1, 0.001)
_COMPARED = 256


class Ewc(Learner):
    """Elastic weight consolidation (Kirkpatrick et al., PNAS 2017): important parameters stay near their values."""

    def begin(self, graph: CurrentGraph) -> None:
        """Do nothing before the first task."""
        if graph.task == 0:
            self._held: list[tuple[list[Tensor], list[Tensor]]] = []

    def penalty(self, embedding: Tensor, scores: Tensor, new: int) -> Tensor | float:
        """Squared parameter change since each old task, weighted by its Fisher information."""
        terms = [
            (weight * (now - then) ** 2).sum()
            for fisher, values in self._held
            for weight, now, then in zip(fisher, self.model.parameters(), values, strict=True)
        ]
        return self.settings.ewc_strength * torch.stack(terms).sum() if terms else 0.0

    def end(self, graph: CurrentGraph) -> None:
        """Store the parameters and the diagonal of the Fisher information over the task's training nodes."""
        values = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._held.append((self._fisher(graph), values))

    def _fisher(self, graph: CurrentGraph) -> list[Tensor]:
        """Mean of squared gradients: with random signs the square of a sum is the sum of squares on average."""
        rows = self._balanced(graph.task)
        losses = self.losses(self.model(graph.block(rows.nodes)), rows.nodes, graph.task)
        random = torch.Generator().manual_seed(self.settings.seed + graph.task)
        weights = torch.from_numpy(rows.weights).float().sqrt()
        parameters = list(self.model.parameters())
        fisher = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(_DRAWS):
            signs = torch.randint(0, 2, (len(losses),), generator=random) * 2 - 1
            found = torch.autograd.grad((weights * signs * losses).sum(), parameters, retain_graph=True)
            for total, gradient in zip(fisher, found, strict=True):
                total += gradient**2 / _DRAWS
        return fisher


class Lwf(Learner):
    """Learning without forgetting (Li, Hoiem, ECCV 2016): old tasks' answers on new nodes are preserved."""

    def begin(self, graph: CurrentGraph) -> None:
        """Record the answers of the current network."""
        self._targets: Tensor | None = None
        self._old = [list(task.classes) for task in self.growing_graph.tasks[: graph.task]]
        if self._old:
            nodes = self._balanced(graph.task).nodes
            with torch.no_grad():
                self._targets = self._answers(self.model(graph.block(nodes))).exp()

    def penalty(self, embedding: Tensor, scores: Tensor, new: int) -> Tensor | float:
        """Cross entropy with the old answers, summed over old tasks."""
        if self._targets is None:
            return 0.0
        return -self.settings.lwf_strength * (self._targets * self._answers(scores)).sum() / len(scores)

    def _answers(self, scores: Tensor) -> Tensor:
        """Logarithms of softened answers: of each old task by itself, or of all old classes together."""
        classes = torch.tensor(self._old)
        if self.settings.setting == "class":
            classes = classes.reshape(1, -1)
        return log_softmax(scores[:, classes] / self.settings.lwf_temperature, dim=-1)


class Gem(Rehearsal):
    """Gradient episodic memory (Lopez-Paz, Ranzato, NIPS 2017): no step may increase the loss of kept nodes."""

    def rows(self, graph: CurrentGraph) -> list[WeightedNodes]:
        """Weighted nodes of the new task only."""
        return Learner.rows(self, graph)

    def begin(self, graph: CurrentGraph) -> None:
        """Look up the kept nodes in the current graph."""
        self._memories: list[tuple[Block, NDArray[np.int64], int]] = [
            (graph.block(kept.nodes), kept.nodes, graph.task) for kept in self.kept
        ]

    def adjust(self) -> None:
        """Project the gradient to the nearest one that does not increase old losses."""
        if not self._memories:
            return
        parameters = list(self.model.parameters())
        old = torch.stack([self._gradient(*memory) for memory in self._memories])
        new = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
        turned = nearest_gradient(new, old, self.settings.gem_margin)
        for parameter, part in zip(parameters, turned.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)

    def _gradient(self, block: Block, nodes: NDArray[np.int64], task: int) -> Tensor:
        loss = self.losses(self.model(block), nodes, task).mean()
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(self.model.parameters()))])


def nearest_gradient(new: Tensor, old: Tensor, margin: float) -> Tensor:
    """Gradient new + old' v, [p], nearest to `new` whose products with the rows of `old` are non-negative.

    Coordinate descent on the dual: minimise |old' v|^2 / 2 + (old new)' v over v >= margin. [p], [tasks, p].
    """
    products = (old @ new).double().numpy()
    if (products >= 0).all():
        return new
    inner = (old @ old.T).double().numpy()
    inner[np.diag_indices(len(inner))] += 1e-12 + 1e-3 * np.trace(inner) / len(inner) ** 2
    v = np.full(len(products), margin)
    for _ in range(_SWEEPS):
        before = v.copy()
        for i in range(len(v)):
            v[i] = max(margin, v[i] - (inner[i] @ v + products[i]) / inner[i, i])
        if np.abs(v - before).max() <= 1e-9 * max(1.0, np.abs(v).max()):
            break
    return new + old.T @ torch.from_numpy(v).float()


class Ssrm(Rehearsal):
    """Structural shift risk mitigation (Su, Zou, Zhang, Wu, ICML 2023) beside replay.

    It penalises the distance between the embeddings of new and rehearsed nodes.
    """

    def penalty(self, embedding: Tensor, scores: Tensor, new: int) -> Tensor | float:
        """Squared mean discrepancy of at most 256 evenly chosen new nodes and all rehearsed ones."""
        if len(embedding) == new:
            return 0.0
        some = torch.linspace(0, new - 1, min(_COMPARED, new)).long()
        return self.settings.ssrm_strength * mean_discrepancy(embedding[some], embedding[new:])


def mean_discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of rows, by the sum of exp(-g d^2) for g of 1, 0.1 and 0.001."""

    def kernel(one: Tensor, other: Tensor) -> Tensor:
        squares = (one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T
        found = [torch.exp(-rate * squares.clamp(min=0)).mean() for rate in _RATES]
        return torch.stack(found).sum()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
