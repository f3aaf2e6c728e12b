"""Learners that hold back changes: gradients, discrepancy and Fisher information."""

import numpy as np
import pytest
import torch
from scipy import optimize

from tests.runtime.incremental.grown import small
from wirewise.runtime.incremental import CurrentGraph, Settings, learner_of
from wirewise.runtime.incremental.regularised import mean_discrepancy, nearest_gradient


@pytest.fixture(scope="module")
def growing():
    return small()


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


def test_the_diagonal_of_the_fisher_information_is_that_of_single_nodes(growing, monkeypatch):
    monkeypatch.setattr("wirewise.runtime.incremental.regularised._DRAWS", 600)
    learner = learner_of("ewc", growing, Settings(hidden=4))
    graph = CurrentGraph(growing, 0)
    rows = learner._balanced(0)
    losses = learner.losses(learner.model(graph.block(rows.nodes)), rows.nodes, 0)
    single = sum(
        w * torch.autograd.grad(loss, learner.model.second, retain_graph=True)[0] ** 2
        for w, loss in zip(rows.weights, losses, strict=True)
    )
    torch.testing.assert_close(learner._fisher(graph)[1].double(), single.double(), rtol=0.2, atol=2e-3)
