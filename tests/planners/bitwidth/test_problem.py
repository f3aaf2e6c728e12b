"""Weights, noise factors, validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wirewise.errors import PlanError
from wirewise.planners.bitwidth import (
    BitWidthProblem,
    ChannelProblem,
    ExchangeProblem,
    noise_factor,
)
from wirewise.planners.bitwidth.problem import BFLOAT16_NOISE, make_plan

from . import problems


def channel(weights, sender=0, receiver=1, energies=None):
    return ChannelProblem(
        sender=sender, receiver=receiver, weights=np.array(weights, float), energies=energies
    )


def one(*channels, ranks=2):
    return BitWidthProblem(
        exchanges=[ExchangeProblem(name="forward1", width=8, channels=channels)], world_size=ranks
    )


def test_noise_factors():
    assert [noise_factor(b) for b in (1, 2, 4, 8, 32)] == [1.0, 1 / 9, 1 / 225, 1 / 65025, 0.0]
    assert 0 < noise_factor(16) < noise_factor(8)


def test_bfloat16_noise_is_what_rounding_does():
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-8, 8, 200_000)).astype(np.float32)
    word = x.view(np.uint32)
    rounded = ((word + 0x7FFF + ((word >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    assert np.mean(((rounded - x) / x) ** 2) == pytest.approx(BFLOAT16_NOISE, rel=0.02)


def test_channel_noise_uses_energies_for_bfloat16_only():
    bits = np.array([4, 16, 32], np.uint8)
    plain = channel([1.0, 2.0, 3.0])
    assert plain.noise(bits) == pytest.approx(1 / 225 + 2 * noise_factor(16))
    known = channel([1.0, 2.0, 3.0], energies=np.array([9.0, 5.0, 9.0]))
    assert known.noise(bits) == pytest.approx(1 / 225 + 5 * BFLOAT16_NOISE)


def test_weight_sigma():
    e = problems.exchange(3, 4000, sigma=1.7)
    assert e.weight_sigma() == pytest.approx(1.7, rel=0.03)
    assert ExchangeProblem(name="forward1", width=4, channels=[channel([0.0])]).weight_sigma() == 0.0


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (one(channel([1.0, np.nan])), "forward1 0 -> 1: weight of message 1 is nan"),
        (one(channel([-1.0])), "message 0 is -1"),
        (one(channel([1.0], energies=np.ones(2))), r"\(2,\) values for 1 messages"),
        (one(channel([1.0]), channel([1.0])), "comes twice"),
        (one(channel([1.0], receiver=2)), "0 -> 2 is not one of the channels"),
        (
            BitWidthProblem(exchanges=[one().exchanges[0], one().exchanges[0]], world_size=2),
            "expected each name once",
        ),
    ],
)
def test_validate(broken, words):
    with pytest.raises(PlanError, match=words):
        broken.validate()


def test_make_plan_predicts_wire_noise_and_sigma():
    p = one(channel([1.0, 2.0]), channel([3.0], sender=1, receiver=0))
    p = replace(p, costs=problems.costs(2, bandwidth=1e3, latency=0.5))
    bits = {("forward1", 0, 1): np.array([4, 32], np.uint8), ("forward1", 1, 0): np.array([2], np.uint8)}
    made = make_plan(p, bits, planner="test")
    assert made.predicted_s["forward1"] == pytest.approx(0.5 + (4 + 6 + 32) / 1e3)
    assert made.noise["forward1"] == pytest.approx(1 / 225 + 3 / 9)
    assert made.weight_sigma["forward1"] == pytest.approx(np.std(np.log([1, 2, 3])))
