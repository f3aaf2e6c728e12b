"""Plans with less to do, next to the shortest ones."""

from __future__ import annotations

import pytest

from tests.harness.tiers import slow
from tests.planners.fusion.problems import random_compression
from wirewise.cost.curve import ZERO, Curve
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake import (
    CompressionProblem,
    GradientGroup,
    Option,
    cupcake,
    plan_groups,
    solve,
    step_s,
)
from wirewise.planners.fusion.cupcake.easing import _work, reduce_work


def work_s(problem, groups):
    """Seconds to encode, send and decode all groups, one after the other."""
    return float(sum(_work(problem, [group])[group.option, 0] for group in groups))


def filling(encode_s):
    """Two gradients; the link is idle while the second is made, just long enough for the first without a codec.

    The two together take longer to encode than one.
    """
    options = (
        Option("none", "all_reduce", "inline", ZERO, Curve.line(0.0, 0.1), ZERO),
        Option("sign", "all_gather", "inline", Curve.line(0.0, encode_s / 10), Curve.line(0.01, 0.0), ZERO),
    )
    return CompressionProblem(elements=[10, 10], gaps_s=[1.0, 1.0], options=options)


def test_a_link_is_not_filled_for_less_than_the_slack():
    problem = filling(0.01)
    shortest = solve(problem).groups
    assert [group.option for group in shortest] == [0, 1]
    assert reduce_work(problem, shortest, 0.0) == shortest
    assert reduce_work(problem, shortest, 0.02) == [GradientGroup(0, 1, 1)]
    assert [bucket.codec for bucket in cupcake(problem).buckets] == ["sign"]
    assert [bucket.codec for bucket in plan_groups(problem).buckets] == ["none", "sign"]
    assert [bucket.codec for bucket in cupcake(filling(0.1)).buckets] == ["none", "sign"]


def test_a_message_less_is_not_worth_a_later_end():
    option = Option("none", "all_reduce", "inline", ZERO, Curve.line(0.005, 0.01), ZERO)
    problem = CompressionProblem(elements=[10, 10], gaps_s=[1.0, 1.0], options=(option,))
    shortest = solve(problem).groups
    together = [GradientGroup(0, 1, 0)]
    assert len(shortest) == 2 and work_s(problem, together) < work_s(problem, shortest)
    assert step_s(problem, together) < 1.05 * step_s(problem, shortest)
    assert reduce_work(problem, shortest, 0.05) == shortest


@pytest.mark.slow
@pytest.mark.parametrize("kind", [slow("codecs"), slow("decode"), "beside"])
@pytest.mark.sample(1)
def test_less_work_and_no_longer_than_the_slack_allows(kind):
    eased_plans = 0
    for seed in range(30):
        problem = random_compression(seed, kind)
        shortest = solve(problem).groups
        found = reduce_work(problem, shortest, 0.05)
        assert step_s(problem, found) <= 1.05 * step_s(problem, shortest)
        saved = work_s(problem, shortest) - work_s(problem, found)
        assert 0 <= saved and step_s(problem, found) - step_s(problem, shortest) <= saved + 1e-12
        assert [i for group in found for i in range(group.first, group.last + 1)] == list(
            range(len(problem.elements))
        )
        eased_plans += found != shortest
    assert eased_plans


def test_a_slack_is_a_share():
    with pytest.raises(InputError, match=r"slack is -0\.1; expected a share"):
        cupcake(filling(0.1), slack=-0.1)
