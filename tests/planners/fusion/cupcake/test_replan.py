"""Plans for links that got faster or slower."""

import msgspec
import pytest

from wirewise.cost.curve import Curve
from wirewise.cost.gradients import V100
from wirewise.errors import InputError, PlanError
from wirewise.planners.fusion.cupcake import compression_problem, cupcake, plan_groups, step_s, with_splits
from wirewise.planners.fusion.cupcake.replan import groups_of, replanner, scale_costs
from wirewise.trace.gradients import GradientTensor, GradientTrace

TRACE = GradientTrace(
    tensors=tuple(GradientTensor(name=f"t{i}", elements=300_000, gap_us=800.0) for i in range(30))
)


def costs(rate=1e8):
    knots = {
        name: tuple((float(size), 1e-3 + bytes_sent * size / rate) for size in (1e3, 1e5, 1e7))
        for name, bytes_sent in (("all_reduce", 1.5), ("all_gather", 3.0), ("divisible", 1.5))
    }
    return msgspec.structs.replace(V100, ranks=4, schemes=knots)


@pytest.mark.parametrize("slowdown", [0.4, 1.0, 5.0])
def test_one_all_reduce_takes_so_much_longer(slowdown):
    size = 200_000
    before, after = costs(), scale_costs(costs(), slowdown, size)
    curves = [Curve(one.schemes["all_reduce"]) for one in (before, after)]
    assert float(curves[1](size)) == pytest.approx(slowdown * float(curves[0](size)), rel=1e-3)
    assert float(curves[1](0)) == pytest.approx(float(curves[0](0)))
    assert after.codecs == before.codecs


def test_the_present_plan_is_compared_at_the_new_speed():
    plan = replanner(TRACE, costs(), ["efsign"], probe_bytes=1_000_000)
    problem = compression_problem(TRACE, codec=["efsign", "none"], costs=costs(), ranks=4)
    present = cupcake(problem)
    assert any(bucket.codec == "efsign" for bucket in present.buckets)
    same = plan(1.0, present)
    assert (
        same.predicted_step_s
        == pytest.approx(same.baseline_step_s)
        == pytest.approx(present.predicted_step_s)
    )
    fast = plan(0.07, present)
    assert fast.predicted_step_s < 0.98 * fast.baseline_step_s
    assert all(bucket.codec == "none" for bucket in fast.buckets)


def test_groups_of_a_plan_are_read_back():
    problem = compression_problem(TRACE, codec=["efsign", "none"], costs=costs(), ranks=4)
    found = cupcake(problem)
    assert step_s(problem, groups_of(problem, found)) == pytest.approx(found.predicted_step_s)
    without = compression_problem(TRACE, codec=["none"], costs=costs(), ranks=4)
    with pytest.raises(PlanError, match="bucket 0 of the plan by 'cupcake' is efsign by"):
        groups_of(without, found)


def test_a_plan_of_pieces_is_compared_as_it_is():
    giant = GradientTensor(name="giant", elements=20_000_000, gap_us=2_000.0)
    trace = GradientTrace(tensors=(*TRACE.tensors, giant))
    problem = compression_problem(trace, codec=["efsign", "none"], costs=costs(), ranks=4)
    present = plan_groups(problem, split=2_000_000)
    assert set(present.splits) == {"giant"} and len(present.parameters) == 31
    in_pieces = with_splits(problem, present.splits)
    assert step_s(in_pieces, groups_of(in_pieces, present)) == pytest.approx(present.predicted_step_s)
    for wanted in ("none", 5_000_000):
        found = replanner(trace, costs(), ["efsign"], split=wanted)(1.0, present)
        assert found.baseline_step_s == pytest.approx(present.predicted_step_s)
        assert bool(found.splits) == (wanted != "none")


@pytest.mark.parametrize("slowdown", [0.0, -1.0, float("inf"), float("nan")])
def test_slowdowns_that_cannot_be_used(slowdown):
    with pytest.raises(InputError, match="expected a factor above 0"):
        scale_costs(costs(), slowdown, 1000)
    with pytest.raises(InputError, match="no collective"):
        scale_costs(V100, 2.0, 1000)
