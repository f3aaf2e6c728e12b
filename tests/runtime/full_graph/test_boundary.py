"""Boundary rows that travel in an epoch: a share, or the blocks that changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.runtime.full_graph.training import small_graph, split, train, worst
from wirewise.runtime import full_graph as fg


@pytest.mark.slow
def test_boundary_samples_are_unbiased_and_both_ends_agree() -> None:
    """The mean over epochs of sampled gradients of a linear model approaches the full gradient."""
    parts = split(small_graph(nodes=80), 2)
    knobs = {"learning_rate": 1e-30, "dropout": 0.0, "norm": False, "layers": 2, "dtype": torch.float64}
    full = train(parts, "fp32", epochs=1, **knobs)
    half = replace(fg.mode("bns"), boundary_rate=0.5)
    losses = train(parts, half, epochs=60, **knobs).losses
    assert np.std(losses) > 1e-6, "every epoch draws its own sample"
    assert np.mean(losses) == pytest.approx(full.losses[0], abs=6 * np.std(losses) / np.sqrt(60) + 0.05)
    assert train(parts, half, epochs=1).records[0].bytes_sent == pytest.approx(
        train(parts, "fp32", epochs=1).records[0].bytes_sent / 2, rel=0.05
    )


def test_unchanged_blocks_are_not_sent_again_until_they_are_too_old() -> None:
    parts = split(small_graph(), 3)
    frozen = {"learning_rate": 1e-30, "dropout": 0.0, "dtype": torch.float64}
    mode = fg.ExchangeMode(name="skip", skip_drift=0.01, skip_limit=2)
    fresh = train(parts, "fp32", epochs=1, **frozen)
    run = train(parts, mode, epochs=7, **frozen)
    sent = [r.bytes_sent for r in run.records]
    full = fresh.records[0].bytes_sent
    # Gradients are sent fresh (half of the bytes), activations in epochs 0, 3 and 6.
    assert sent == [full, full // 2, full // 2, full, full // 2, full // 2, full]
    assert run.losses == pytest.approx([fresh.losses[0]] * 7, rel=1e-12)
    assert worst(run.gradients, fresh.gradients) <= 1e-12
