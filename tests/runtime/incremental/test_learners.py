"""Learners of growing graphs: rehearsal on the current graph, weights by node, and what each rule does (E4 to E6)."""

import numpy as np
import pytest
import torch

from tests.runtime.incremental.grown import FEW, small
from wirewise.graph.rehearsal import average_forgetting, average_performance
from wirewise.runtime.incremental import METHODS, CurrentGraph, Settings, learner_of, sample_losses, train


@pytest.fixture(scope="module")
def growing():
    return small()


def test_e5_a_kept_node_is_rehearsed_as_it_lies_now(growing):
    """Defect 3 of the released code: its rehearsed nodes had no edges at all."""
    learner = learner_of("er-random", growing, FEW)
    graphs = [CurrentGraph(growing, task) for task in (0, 1)]
    learner.learn(graphs[0])
    kept = learner.kept[0]
    new, old = learner.rows(graphs[1])
    assert np.array_equal(old.nodes, kept.nodes)
    then, now = (learner.embedded(graph.block(old.nodes)) for graph in graphs)
    degree = [np.diff(graph.edges.indptr)[old.nodes] for graph in graphs]
    assert (degree[1] > degree[0]).any()
    moved = np.abs(now - then).max(axis=1) > 1e-6
    assert moved[degree[1] > degree[0]].all()
    assert np.array_equal(learner.embedded(kept.then), then)
    assert not np.isin(new.nodes, kept.nodes).any()


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].selection])
def test_e4_only_training_nodes_are_kept_and_no_more_than_the_budget(growing, name):
    learner = learner_of(name, growing, FEW)
    for number, task in enumerate(growing.tasks):
        learner.learn(CurrentGraph(growing, number))
        kept = learner.kept[number].nodes
        assert set(kept) <= set(task.train)
        assert np.bincount(growing.data.y[kept], minlength=6)[list(task.classes)].tolist() == [2, 2]


@pytest.mark.parametrize("setting", ["task", "class"])
def test_e6_weights_act_by_node(growing, setting):
    """Defect 2 of the released code: weights were averaged before they met the losses."""
    learner = learner_of("bare", growing, Settings(setting=setting))
    nodes = growing.tasks[1].train[:6]
    block = CurrentGraph(growing, 1).block(nodes)

    def gradients(weights, chosen=slice(None)):
        losses = learner.losses(learner.model(block), nodes, 1)
        loss = (torch.tensor(weights) * losses).sum() if weights else losses[chosen]
        return torch.autograd.grad(loss, list(learner.model.parameters()))

    for i in range(len(nodes)):
        one_hot = [float(j == i) for j in range(len(nodes))]
        for one, other in zip(gradients(one_hot), gradients(None, i), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_matched_weights_reach_the_loss(growing):
    learner = learner_of("sea-er", growing, FEW)
    for task in (0, 1):
        learner.learn(CurrentGraph(growing, task))
    rows = learner.rows(CurrentGraph(growing, 2))
    weights = np.concatenate([part.weights * 4 for part in rows[1:]])
    assert weights.std() > 0.01 and 0 <= weights.min() and weights.max() <= 3 + 1e-6


@pytest.mark.parametrize(("mixing", "share"), [("mean", 1.0), ("sum", 2.0)])
def test_old_tasks_do_not_crowd_out_the_new_one(growing, mixing, share):
    """Defect 4 of the released code: the new task's weight fell with a power of the number of old ones."""
    learner = learner_of("er-random", growing, Settings(epochs=1, budget=2, mixing=mixing))
    for task in (0, 1):
        learner.learn(CurrentGraph(growing, task))
    new, *old = learner.rows(CurrentGraph(growing, 2))
    assert new.weights.sum() == pytest.approx(1)
    assert sum(part.weights.sum() for part in old) == pytest.approx(share)


@pytest.mark.slow
def test_where_all_classes_compete_old_tasks_must_each_weigh_as_the_new_one():
    """Together they weigh one, so that classes of the new task win nodes of old ones."""
    growing = small(900)
    found = {
        mixing: train(
            growing,
            ["er-random"],
            Settings(epochs=25, hidden=16, learning_rate=0.02, setting="class", mixing=mixing),
        )["er-random"]
        for mixing in ("sum", "mean")
    }
    assert average_performance(found["sum"]) > average_performance(found["mean"])
    assert average_forgetting(found["sum"]) > average_forgetting(found["mean"])


def test_classes_that_compete(growing):
    scores = torch.zeros(2, 6)
    scores[:, 4] = 9
    nodes = np.array([growing.tasks[0].test[0], growing.tasks[1].test[0]])
    for setting, counts in (("task", [2, 2]), ("class", [4, 4])):
        learner = learner_of("bare", growing, Settings(setting=setting))
        allowed = learner.allowed(nodes, 1)
        assert allowed.sum(dim=1).tolist() == counts and not allowed[:, 4].any()
        losses = sample_losses(scores, learner.labels[nodes], allowed)
        torch.testing.assert_close(losses, torch.tensor(counts).float().log())


@pytest.mark.parametrize(("decay", "kept"), [("decoupled", True), ("l2", False)])
def test_decay_takes_old_classes_for_noise_only_inside_adam(growing, decay, kept):
    """Weights of old classes, which have no gradients of their own, shrink by a full step at a time."""
    learner = learner_of("bare", growing, Settings(epochs=20, hidden=8, decay=decay))
    learner.learn(CurrentGraph(growing, 0))
    before = learner.model.second[:2].detach().clone()
    learner.optimizer.state.clear()
    learner.learn(CurrentGraph(growing, 1))
    moved = (learner.model.second[:2] - before).abs().mean()
    assert (moved < 1e-3) == kept and (moved > 0.05) == (not kept)
