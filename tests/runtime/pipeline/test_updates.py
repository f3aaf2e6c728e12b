"""Scales of the loss by update, and corrections of delayed gradients by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.pipeline import LossScale
from wirewise.runtime.pipeline.updates import GradientExchange, WeightUpdates
from wirewise.runtime.pipeline.weights import Weights


def test_a_scale_is_known_for_the_updates_in_flight() -> None:
    scale = LossScale(4.0, dynamic=True, patience=2)
    for finite in (True, True, False, True, True, True):
        scale.update(finite)
    assert [scale.after(updates) for updates in (4, 5, 6)] == [4.0, 8.0, 8.0]
    again = LossScale(1.0, dynamic=True)
    again.load(scale.state())
    assert again.after(6) == 8.0
    fixed = LossScale(3.0)
    fixed.update(False)
    assert fixed.after(1) == 3.0
    with pytest.raises(InputError, match="expected finite ones above 0"):
        LossScale(0.0)


def _followed(correction: Any, gradients: list[float]) -> list[float]:
    """Weight at which gradients are taken after each update by plain steps of 1."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(0.0)
    weights = Weights({"layer": layer}, 2)
    optimizer = torch.optim.SGD(list(weights.named.values()), lr=1.0)
    weights.copy_versions()
    exchange = GradientExchange(weights, None, {}, frozenset(), None, 1)
    updates = WeightUpdates(
        weights, exchange, [optimizer], [], clip=None, scale=LossScale(), correction=correction
    )
    found = []
    for update, gradient in enumerate(gradients):
        version = max(update - 1, 0)
        weights.use(version)
        (layer.weight * gradient).sum().backward()
        updates.start(version, 1.0)
        updates.finish()
        weights.originals()
        found.append(float(layer.weight.detach()))
    updates.close()
    return found


def test_steps_without_correction_add_up() -> None:
    assert _followed("none", [1.0, 2.0, -4.0]) == [-1.0, -3.0, 1.0]


def test_error_feedback_adds_the_change_of_the_last_two_steps() -> None:
    # Steps are -1, -2 and 4: W' = W + s + (s - s before).
    assert _followed("error_feedback", [1.0, 2.0, -4.0]) == [-2.0, -5.0, 5.0]


def test_nesterov_leads_by_its_velocity() -> None:
    velocity, base, expected = 0.0, 0.0, []
    for step in (-1.0, -2.0, 4.0):
        velocity = 0.9 * velocity + 0.1 * step
        base += velocity
        expected.append(base + 0.9 * velocity)
    assert _followed("nesterov", [1.0, 2.0, -4.0]) == pytest.approx(expected, abs=1e-6)
