"""TapFinger's network sees what its graph connects, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wirewise.planners.jobs.attention import ObservationTensors, TapFinger
from wirewise.sim.jobs.views import ACTIVE, CLUSTER, OPTIONS, PENDING


@pytest.fixture
def seen():
    torch.manual_seed(2)
    window = torch.tensor([[[0, 1, -1], [1, -1, -1]]])
    adjacent = torch.zeros(1, 2, 6, dtype=torch.bool)
    adjacent[0, 0, :2] = adjacent[0, 1, 1] = True
    runs = torch.zeros(1, 2, 4, dtype=torch.bool)
    runs[0, 0, 0] = True
    return ObservationTensors(
        torch.rand(1, 2, CLUSTER),
        torch.rand(1, 6, PENDING),
        adjacent,
        window,
        torch.rand(1, 2, 4, ACTIVE),
        runs,
    )


@pytest.fixture
def network():
    torch.manual_seed(3)
    return TapFinger(width=16, layers=2).eval()


def pointed(network, seen):
    return network.pointers(*network.embeddings(seen), seen.window).detach()


def test_picks_are_probabilities_over_the_jobs_of_a_window(network, seen):
    chances = pointed(network, seen).exp()
    assert (
        chances.sum(-1).numpy() == pytest.approx(np.ones((1, 2)))
        and chances[0, 0, 2] == chances[0, 1, 1] == 0
    )


def test_places_without_a_job_say_nothing(network, seen):
    other = seen._replace(pending=seen.pending.clone(), active=seen.active.clone())
    other.pending[0, 2:] = 9.0
    other.active[0, 0, 1:] = other.active[0, 1] = 9.0
    assert torch.equal(pointed(network, other), pointed(network, seen))


def test_clusters_know_of_each_other_after_two_layers(network, seen):
    busy = seen._replace(active=seen.active.clone())
    busy.active[0, 0, 0] += 1.0
    assert not torch.allclose(pointed(network, busy)[0, 0, :2], pointed(network, seen)[0, 0, :2])
    deep = TapFinger(width=16, layers=3).eval()
    before, after = (deep.embeddings(one)[0][0, 1] for one in (seen, busy))
    assert not torch.allclose(before, after)


def test_only_legal_amounts_have_a_chance(network, seen):
    clusters, jobs = network.embeddings(seen)
    legal = torch.tensor([[[True, False, True], [True, False, False]]])
    chances = network.amounts(clusters, jobs[:, :, 0], torch.rand(1, 2, 3, OPTIONS), legal).detach().exp()
    assert chances[0, :, 1].tolist() == [0.0, 0.0] and chances[0, 1].tolist() == [1.0, 0.0, 0.0]
    assert chances.sum(-1).numpy() == pytest.approx(np.ones((1, 2)))
