"""Learners of growing graphs: rehearsal on the current graph, weights by vertex, and what each rule does (E4 to E6)."""

import numpy as np
import pytest
import torch
from scipy import optimize

from tests.runtime.incremental.grown import small
from wirewise.errors import InputError
from wirewise.graph.rehearsal import average_forgetting, average_performance
from wirewise.runtime.incremental import METHODS, CurrentGraph, Settings, learner_of, sample_losses, train
from wirewise.runtime.incremental.regularised import mean_discrepancy, nearest_gradient

FEW = Settings(epochs=3, budget=2, hidden=8)


@pytest.fixture(scope="module")
def growing():
    return small()


def dense_embeddings(learner, growing, task):
    """By the formulas, over all vertices that have arrived."""
    edges, nodes = growing.edges(task), growing.data.num_nodes
    adjacency = np.eye(nodes)
    adjacency[np.repeat(np.arange(nodes), np.diff(edges.indptr)), edges.indices] = 1
    scale = 1 / np.sqrt(adjacency.sum(axis=1))
    adjacency = torch.from_numpy(scale[:, None] * adjacency * scale).float()
    model = learner.model
    hidden = (adjacency @ torch.from_numpy(growing.data.x) @ model.first.T).relu()
    return adjacency @ hidden


def test_rows_of_a_block_are_those_of_the_whole_graph(growing):
    learner = learner_of("bare", growing, FEW)
    vertices = growing.tasks[1].train[::5]
    found = learner.model.embed(CurrentGraph(growing, 1).block(vertices))
    torch.testing.assert_close(found, dense_embeddings(learner, growing, 1)[vertices], rtol=1e-4, atol=1e-5)


def test_e5_a_kept_vertex_is_rehearsed_as_it_lies_now(growing):
    """Defect 3 of the released code: its rehearsed vertices had no edges at all."""
    learner = learner_of("er-random", growing, FEW)
    graphs = [CurrentGraph(growing, task) for task in (0, 1)]
    learner.learn(graphs[0])
    kept = learner.kept[0]
    new, old = learner.rows(graphs[1])
    assert np.array_equal(old.vertices, kept.vertices)
    then, now = (learner.embedded(graph.block(old.vertices)) for graph in graphs)
    degree = [np.diff(graph.edges.indptr)[old.vertices] for graph in graphs]
    assert (degree[1] > degree[0]).any()
    moved = np.abs(now - then).max(axis=1) > 1e-6
    assert moved[degree[1] > degree[0]].all()
    assert np.array_equal(learner.embedded(kept.then), then)
    assert not np.isin(new.vertices, kept.vertices).any()


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].selection])
def test_e4_only_training_vertices_are_kept_and_no_more_than_the_budget(growing, name):
    learner = learner_of(name, growing, FEW)
    for number, task in enumerate(growing.tasks):
        learner.learn(CurrentGraph(growing, number))
        kept = learner.kept[number].vertices
        assert set(kept) <= set(task.train)
        assert np.bincount(growing.data.y[kept], minlength=6)[list(task.classes)].tolist() == [2, 2]


@pytest.mark.parametrize("setting", ["task", "class"])
def test_e6_weights_act_by_vertex(growing, setting):
    """Defect 2 of the released code: weights were averaged before they met the losses."""
    learner = learner_of("bare", growing, Settings(setting=setting))
    vertices = growing.tasks[1].train[:6]
    block = CurrentGraph(growing, 1).block(vertices)

    def gradients(weights, chosen=slice(None)):
        losses = learner.losses(learner.model(block), vertices, 1)
        loss = (torch.tensor(weights) * losses).sum() if weights else losses[chosen]
        return torch.autograd.grad(loss, list(learner.model.parameters()))

    for i in range(len(vertices)):
        one_hot = [float(j == i) for j in range(len(vertices))]
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
    """Together they weigh one, so that classes of the new task win vertices of old ones."""
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
    vertices = np.array([growing.tasks[0].test[0], growing.tasks[1].test[0]])
    for setting, counts in (("task", [2, 2]), ("class", [4, 4])):
        learner = learner_of("bare", growing, Settings(setting=setting))
        allowed = learner.allowed(vertices, 1)
        assert allowed.sum(dim=1).tolist() == counts and not allowed[:, 4].any()
        losses = sample_losses(scores, learner.labels[vertices], allowed)
        torch.testing.assert_close(losses, torch.tensor(counts).float().log())


@pytest.mark.slow
def test_every_method_learns_and_joint_training_is_best():
    growing = small(900)
    settings = Settings(epochs=25, budget=5, hidden=16, learning_rate=0.02, setting="class")
    found = train(growing, list(METHODS), settings)
    ap = {name: average_performance(accuracy) for name, accuracy in found.items()}
    af = {name: average_forgetting(accuracy) for name, accuracy in found.items()}
    assert max(ap, key=lambda name: ap[name]) == "joint"
    assert ap["bare"] < 0.5 and af["bare"] < -0.4
    for name in METHODS:
        assert found[name][0, 0] > 0.7, name
        if METHODS[name].learner in ("replay", "ssrm"):
            assert ap[name] > ap["bare"] + 0.1, name


@pytest.mark.parametrize("name", ["ewc", "lwf", "gem", "ssrm"])
def test_regularised_methods_keep_more_than_fine_tuning(growing, name):
    settings = Settings(epochs=20, budget=5, hidden=16, learning_rate=0.02)
    found = train(growing, ["bare", name], settings)
    assert average_forgetting(found[name]) > average_forgetting(found["bare"])


@pytest.mark.parametrize(("decay", "kept"), [("decoupled", True), ("l2", False)])
def test_decay_takes_old_classes_for_noise_only_inside_adam(growing, decay, kept):
    """Without gradients of their own the weights of old classes shrink by a full step at a time."""
    learner = learner_of("bare", growing, Settings(epochs=20, hidden=8, decay=decay))
    learner.learn(CurrentGraph(growing, 0))
    before = learner.model.second[:2].detach().clone()
    learner.optimizer.state.clear()
    learner.learn(CurrentGraph(growing, 1))
    moved = (learner.model.second[:2] - before).abs().mean()
    assert (moved < 1e-3) == kept and (moved > 0.05) == (not kept)


def test_the_same_seed_gives_the_same_accuracies(growing):
    one, other = (train(growing, ["coverage+kmm"], FEW)["coverage+kmm"] for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_turned_gradients_are_the_nearest_that_agree():
    random = torch.Generator().manual_seed(0)
    old, new = torch.randn(3, 8, generator=random), -torch.randn(8, generator=random)
    assert (old @ new).min() < 0
    found, wish = nearest_gradient(new, old, 0.0), new.double().numpy()
    best = optimize.minimize(
        lambda g: ((g - wish) ** 2).sum(),
        wish,
        constraints=[{"type": "ineq", "fun": lambda g, row=row: row @ g} for row in old.double().numpy()],
    )
    assert (old @ found).min() > -0.02
    np.testing.assert_allclose(found.numpy(), best.x, atol=0.02)
    assert torch.equal(nearest_gradient(old.sum(0), old[:1] * 0 + old.sum(0), 0.5), old.sum(0))


def test_discrepancy_is_that_of_distributions():
    random = torch.Generator().manual_seed(0)
    a = torch.randn(50, 4, generator=random)
    assert mean_discrepancy(a, a).abs() < 1e-6
    near, far = mean_discrepancy(a, a + 0.5), mean_discrepancy(a, a + 2)
    assert 0 < near < far


def test_the_diagonal_of_the_fisher_information_is_that_of_single_vertices(growing, monkeypatch):
    monkeypatch.setattr("wirewise.runtime.incremental.regularised._DRAWS", 600)
    learner = learner_of("ewc", growing, Settings(hidden=4))
    graph = CurrentGraph(growing, 0)
    rows = learner._balanced(0)
    losses = learner.losses(learner.model(graph.block(rows.vertices)), rows.vertices, 0)
    single = sum(
        w * torch.autograd.grad(loss, learner.model.second, retain_graph=True)[0] ** 2
        for w, loss in zip(rows.weights, losses, strict=True)
    )
    torch.testing.assert_close(learner._fisher(graph)[1].double(), single.double(), rtol=0.2, atol=2e-3)


def test_wrong_settings_are_named(growing):
    with pytest.raises(InputError, match="budget is 0; expected at least 1"):
        Settings(budget=0)
    with pytest.raises(InputError, match="setting is 'domain'; expected one of: task, class"):
        Settings(setting="domain")
    with pytest.raises(InputError, match="method 'sea' is unknown; expected some of: bare"):
        train(growing, ["sea"], FEW)
    with pytest.raises(InputError, match=r"most is 0\.5; expected a finite number of at least 1"):
        Settings(most=0.5)
