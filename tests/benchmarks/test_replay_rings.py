"""Rings hop by hop: by formula, and one rank for all."""

import numpy as np
import pytest
from tests.benchmarks.test_benchmarks import load

from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.sim import replay
from wirewise.sim.data_parallel import LayerCost

MIB = 2**20
LAYERS = [LayerCost(f"{i}", 0.01, 0.02 * (i + 1), (i + 1) * 0.3 * MIB) for i in range(6)]


@pytest.fixture
def ring_step(monkeypatch):
    return load(monkeypatch, "rings", "replay").ring_step


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_bucket_by_formula(ranks, ring_step):
    flow = ring_step(LAYERS[:1], ranks, optimizer_s=0.5)
    result = replay(flow, Links.uniform(ranks, MIB, 0.01))
    ring = 2 * (ranks - 1) * (0.01 + 0.3 / ranks)
    assert result.step_s == pytest.approx(0.03 + ring + 0.5)
    assert (flow.size_bytes > 0).sum() == ranks * 2 * (ranks - 1)


@pytest.mark.parametrize("cap", [0.2, 1, 100])
def test_one_rank_stands_for_all(cap, ring_step):
    links = Links.uniform(9, 30 * MIB, 1e-3)
    options = {"bucket_bytes": cap * MIB, "optimizer_s": 0.1}
    every = replay(ring_step(LAYERS, 9, **options), links)
    one = replay(ring_step(LAYERS, 9, symmetric=True, **options), links)
    assert one.step_s == pytest.approx(every.step_s)
    assert len(every.end_s) == 9 * len(one.end_s)
    assert every.end_s.reshape(9, -1) == pytest.approx(np.tile(one.end_s, (9, 1)))


def test_a_straggler_holds_back_its_ring(ring_step):
    links = Links.uniform(4, 30 * MIB, 1e-3)
    slow = replay(ring_step(LAYERS, 4, slowdown=[1, 1, 2, 1]), links)
    alike = replay(ring_step(LAYERS, 4, slowdown=[2, 2, 2, 2]), links)
    assert slow.step_s <= alike.step_s
    assert slow.step_s > replay(ring_step(LAYERS, 4), links).step_s
    with pytest.raises(InputError, match="one rank cannot stand for all"):
        ring_step(LAYERS, 2, slowdown=[1, 2], symmetric=True)
    with pytest.raises(InputError, match="got 1 ranks"):
        ring_step(LAYERS, 1)
