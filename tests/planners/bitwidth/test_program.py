"""The integer program: prices and normalisers."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost import LinkCost, Links
from wirewise.errors import PlanError
from wirewise.planners.bitwidth import ChannelProblem, ExchangeProblem
from wirewise.planners.bitwidth.program import BitWidthProgram
from wirewise.planners.bitwidth.threshold import solve

from . import problems

LINK = Links.of_pairs(LinkCost(latency_s=1.0, s_per_byte=1.0), 2, ring=True)


def same(program, bits):
    return [np.full(len(g.weights), bits, np.uint8) for g in program.groups]


def two(first, second, width=8):
    channels = [
        ChannelProblem(sender=0, receiver=1, weights=np.ones(first)),
        ChannelProblem(sender=1, receiver=0, weights=np.ones(second)),
    ]
    return ExchangeProblem(name="forward1", width=width, channels=channels)


def test_a_short_group_is_charged_its_own_rows_and_rows_their_parameters():
    program = BitWidthProgram(two(7, 3), LINK, group_size=5, param_bytes=6)
    assert program.channel_bytes(same(program, 4)).tolist() == [7 * (4 + 6), 3 * (4 + 6)]
    as_published = BitWidthProgram(two(7, 3), LINK, group_size=5, param_bytes=6, exact_bytes=False)
    assert as_published.channel_bytes(same(as_published, 4)).tolist() == [10 * 4, 5 * 4]


def test_the_least_time_is_a_maximum_over_channels():
    program = BitWidthProgram(two(8, 2), LINK, param_bytes=0 or 4)
    assert program.t_best == program.seconds(same(program, 2)) == 1 + 8 * 6
    skewed = BitWidthProgram(two(8, 2), LINK, param_bytes=4, normaliser="min")
    assert skewed.t_best == 1 + 2 * 6
    # With the maximum, the objective spans 0 to 1 - lam in time; with the minimum it does not start at 0.
    assert program.objective(same(program, 2)) == pytest.approx(program.lam)
    assert skewed.objective(same(skewed, 2)) > skewed.lam + 0.1


def test_objective_at_the_ends():
    program = BitWidthProgram(two(8, 2), LINK, lam=0.3)
    assert program.objective(same(program, 2)) == pytest.approx(0.3)
    assert program.objective(same(program, 8)) == pytest.approx(0.7)


def test_groups_are_cut_from_the_heaviest_and_expand_to_send_order():
    e = ExchangeProblem(
        name="forward1",
        width=8,
        channels=[ChannelProblem(sender=0, receiver=1, weights=np.array([1.0, 5.0, 3.0, 4.0, 2.0]))],
    )
    program = BitWidthProgram(e, LINK, group_size=2)
    assert program.groups[0].weights.tolist() == [9.0, 5.0, 1.0]
    bits = program.expand([np.array([8, 4, 2], np.uint8)])[0, 1]
    assert bits.tolist() == [2, 8, 4, 8, 4]


def test_channels_without_messages_stay_empty():
    program = BitWidthProgram(two(3, 0), LINK)
    assert len(program.groups) == 1
    assert program.expand(same(program, 4))[1, 0].tolist() == []


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"lam": 1.5}, "lam is 1.5"),
        ({"bits": (2, 3)}, "bits are"),
        ({"group_size": 0}, "group_size is 0"),
        ({"normaliser": "mean"}, "normaliser is 'mean'"),
    ],
)
def test_knobs_are_checked(knobs, words):
    with pytest.raises(PlanError, match=words):
        BitWidthProgram(problems.exchange(2, 5), LINK, **knobs)


def test_short_groups_change_what_the_published_prices_decide():
    """Charging a short group as a full one makes a small channel look as slow as a large one."""
    rng = np.random.default_rng(0)
    channels = [
        ChannelProblem(sender=0, receiver=1, weights=np.exp(rng.normal(size=100))),
        ChannelProblem(sender=1, receiver=0, weights=np.exp(rng.normal(size=3))),
    ]
    e = ExchangeProblem(name="forward1", width=16, channels=channels)
    links = problems.costs(2, ring=True).links
    exact = BitWidthProgram(e, links, lam=0.5, group_size=100)
    published = BitWidthProgram(e, links, lam=0.5, group_size=100, exact_bytes=False)
    assert exact.channel_bytes(solve(exact))[1] < 0.2 * exact.channel_bytes(solve(exact))[0]
    assert published.channel_bytes(solve(published))[1] == published.channel_bytes(solve(published))[0]
