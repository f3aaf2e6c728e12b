"""Ranks that learn together, each with its own part of the nodes and of what is rehearsed."""

import numpy as np
import pytest

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.incremental.grown import small, train_by_threads
from wirewise.errors import InputError, PeerError
from wirewise.graph.rehearsal import average_performance
from wirewise.runtime.incremental import METHODS, CurrentGraph, Peers, Settings, learner_of, train
from wirewise.runtime.transport import Transport

SETTINGS = Settings(epochs=6, budget=4, hidden=8, learning_rate=0.02)


@pytest.fixture(scope="module")
def growing():
    return small(400)


def lots(growing, workers):
    return np.random.default_rng(0).integers(0, workers, growing.data.num_nodes)


def test_two_ranks_learn_as_one(growing):
    """Losses are sums over nodes, so that ranks add up to one process."""
    alone = train(growing, ["bare", "joint"], SETTINGS)
    for found in train_by_threads(lots(growing, 2), growing, ["bare", "joint"], SETTINGS, 2):
        for name in alone:
            # An argmax may turn on the last bit of a score.
            np.testing.assert_allclose(found[name], alone[name], atol=0.03, equal_nan=True)


def test_a_rank_without_nodes_takes_part(growing):
    owner = np.zeros(growing.data.num_nodes, int)
    alone = train(growing, ["sea-er"], SETTINGS)["sea-er"]
    for found in train_by_threads(owner, growing, ["sea-er"], SETTINGS, 2):
        np.testing.assert_allclose(found["sea-er"], alone, atol=0.03, equal_nan=True)


def test_rehearsal_is_shared_out(growing):
    first, second, third = train_by_threads(lots(growing, 3), growing, ["er-random+kmm"], SETTINGS, 3)
    np.testing.assert_array_equal(first["er-random+kmm"], second["er-random+kmm"])
    np.testing.assert_array_equal(first["er-random+kmm"], third["er-random+kmm"])
    assert average_performance(first["er-random+kmm"]) > 0.6


def test_budgets_of_ranks_add_up():
    nodes, owner = np.arange(10), np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 3])
    for budget in (1, 3, 5, 10, 50):
        shares = []
        for rank in range(4):
            peers = Peers(owner)
            peers.rank, peers.world_size = rank, 4
            shares.append(peers.share(nodes, budget))
            assert shares[-1] <= np.count_nonzero(owner == rank)
        assert sum(shares) == min(budget, 10)


def test_weights_of_ranks_are_those_of_one_process(growing, monkeypatch):
    """Kernel sums add up: with the same nodes kept, every rank finds its part of the same weights."""
    owner = lots(growing, 2)
    everyone = [task.train[::9] for task in growing.tasks]
    monkeypatch.setattr(
        "wirewise.runtime.incremental.learners.Rehearsal.keep",
        lambda self, graph: self.peers.own_nodes(everyone[graph.task]),
    )

    def weights(peers):
        learner = learner_of("sea-er", growing, SETTINGS, peers)
        learner.learn(CurrentGraph(growing, 0))
        return learner.kept[0].nodes, learner.matched(CurrentGraph(growing, 1))[0]

    def work(rank, group, store):
        return weights(Peers(owner, Transport(group, timeout_s=30, store=store)))

    nodes, expected = weights(None)
    parts = run_ranks_as_threads(2, work)
    found = dict(zip(*(np.concatenate(side) for side in zip(*parts, strict=True)), strict=True))
    assert np.std(expected) > 0.05
    np.testing.assert_allclose([found[v] for v in nodes], expected, atol=2e-3)


def test_what_cannot_be_shared_is_named(growing):
    peers = Peers()
    peers.world_size = 2
    for name in ("gem", "ewc", "lwf", "ssrm"):
        assert name in METHODS
        with pytest.raises(InputError, match="learns on one worker"):
            learner_of(name, growing, SETTINGS, peers)


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others(growing, monkeypatch):
    def keep(self, graph):
        if self.peers.rank == 1:
            raise ValueError("broken")
        return kept(self, graph)

    from wirewise.runtime.incremental.learners import Rehearsal

    kept = Rehearsal.keep
    monkeypatch.setattr(Rehearsal, "keep", keep)
    owner = lots(growing, 3)

    def work(rank, group, store):
        peers = Peers(owner, Transport(group, timeout_s=2, store=store))
        with pytest.raises(ValueError if rank == 1 else PeerError) as caught:
            train(growing, ["er-random"], SETTINGS, peers=peers)
        return str(caught.value)

    first, broken, third = run_ranks_as_threads(3, work)
    assert broken == "broken"
    assert "rank 1" in first and "rank 1" in third
