"""Graphs of operators, costs of regions, the simulated step."""

import msgspec
import numpy as np
import pytest
from benchmarks.random_steps import DEVICE, random_graph, random_step

from tests.planners.fusion.disco_reference import Reference
from tests.planners.fusion.disco_states import as_reference, model_of, random_state, whole_s
from wirewise.cost.link import LinkCost
from wirewise.errors import InputError
from wirewise.planners.fusion import disco
from wirewise.planners.fusion.disco import AnalyticCosts, Roofline, StepModel, fit, plan_of
from wirewise.trace import FusionGraph, Operator


def operator(name, *inputs, category="pointwise", gradient="", **rest):
    return Operator(
        name=name,
        kind="k",
        category=category,
        inputs=inputs,
        output_bytes=400,
        elements=100,
        gradient=gradient,
        **rest,
    )


GOOD = FusionGraph(operators=(operator("a"), operator("b", 0), operator("c", 0, 1, gradient="w")))


@pytest.mark.parametrize(
    ("number", "changes", "words"),
    [
        (1, {"inputs": (1,)}, "inputs are [1]; expected numbers of earlier operators, 0 to 0"),
        (1, {"inputs": (2,)}, "operators[1]`: inputs are [2]"),
        (1, {"inputs": (-1,)}, "inputs are [-1]"),
        (2, {"inputs": (0, 0)}, "each once"),
        (1, {"name": "a"}, "stands twice"),
        (1, {"name": ""}, "empty name"),
        (1, {"category": "conv"}, "expected one of pointwise, view"),
        (1, {"gradient": "w"}, "another operator's already"),
        (2, {"gradient": ""}, "none of 3 operators has a gradient"),
        (2, {"output_bytes": 0}, "at least 1 of a gradient"),
        (1, {"time_s": float("nan")}, "time_s is nan"),
        (1, {"outside_bytes": -1}, "outside_bytes is -1"),
    ],
)
def test_what_is_wrong_with_a_graph_is_named(number, changes, words):
    own = list(GOOD.operators)
    own[number] = msgspec.structs.replace(own[number], **changes)
    with pytest.raises(InputError) as caught:
        StepModel(
            FusionGraph(operators=tuple(own)),
            AnalyticCosts(GOOD, DEVICE),
            LinkCost(latency_s=0.0, s_per_byte=0.0),
        )
    assert words in str(caught.value)


def test_a_region_pays_one_launch_and_moves_what_enters_and_leaves():
    costs = AnalyticCosts(GOOD, Roofline(1.0, 0.0, 0.01))
    assert costs((0,), (0,)) == pytest.approx(1 + 4)
    # b and c read a's 400 bytes; c's leave.
    assert costs((1, 2), (2,)) == pytest.approx(1 + 8)
    assert costs((1, 2), (1, 2)) == pytest.approx(1 + 12)
    assert costs((0, 1, 2), (2,)) == pytest.approx(1 + 4)


def test_views_move_nothing_themselves():
    graph = FusionGraph(
        operators=(operator("a"), operator("v", 0, category="view"), operator("c", 1, gradient="w"))
    )
    costs = AnalyticCosts(graph, Roofline(1.0, 0.0, 0.01))
    assert costs((1,), (1,)) == pytest.approx(1)
    assert costs((1, 2), (2,)) == pytest.approx(1 + 8)
    assert costs((0, 1), (1,)) == costs((0, 1), (0, 1)) == pytest.approx(1 + 4)
    assert costs((0, 1, 2), (2,)) == pytest.approx(1 + 4)


def test_flops_are_charged_in_every_region_and_measured_operators_keep_their_times():
    heavy = FusionGraph(operators=(operator("a", flops=100.0), operator("b", 0, flops=900.0, gradient="w")))
    formula = AnalyticCosts(heavy, Roofline(1.0, 0.01, 0.0))
    assert formula((0, 1), (1,)) == pytest.approx(11)
    times = [6.0, 30.0]
    measured = FusionGraph(
        operators=tuple(
            msgspec.structs.replace(o, time_s=t) for o, t in zip(heavy.operators, times, strict=True)
        )
    )
    costs = AnalyticCosts(measured, Roofline(1.0, 0.01, 0.0))
    assert [costs((i,), (i,)) for i in (0, 1)] == times
    # The formula says 2 + 10 apart; three times as long was measured.
    assert costs((0, 1), (1,)) == pytest.approx(33)


@pytest.mark.parametrize("seed", range(3))
def test_constants_are_found_again_from_measured_times(seed):
    graph, truth = random_step(seed, 10), Roofline(4e-6, 3e-11, 2e-10)
    alone = AnalyticCosts(graph, truth)
    noise = np.random.default_rng(seed).normal(1.0, 0.02, len(graph.operators))
    timed = [
        msgspec.structs.replace(one, time_s=alone((i,), (i,)) * noise[i])
        for i, one in enumerate(graph.operators)
    ]
    found = fit(msgspec.structs.replace(graph, operators=tuple(timed)))
    assert tuple(found) == pytest.approx(tuple(truth), rel=0.1)


def test_constants_need_measured_times():
    with pytest.raises(InputError, match="none of 3 operators has a measured time_s"):
        AnalyticCosts(GOOD)


@pytest.mark.parametrize("seed", range(6))
def test_random_states_step_as_the_plain_simulator_says(seed):
    rate = (1.0, 0.8)[seed % 2]
    model = model_of(random_step(seed, 3), overlap_rate=rate)
    random, reference = (
        np.random.default_rng(seed),
        Reference(model.graph, model.costs, model.all_reduce, rate),
    )
    copies = 0
    for _ in range(5):
        state = random_state(model, random)
        regions, buckets = as_reference(model, state)
        found = model.times(state)
        assert found.step_s == pytest.approx(reference.step_s(regions, buckets), rel=1e-12)
        assert all(reference.legal(own | held) for own, held in regions)
        assert found.full_overlap_s <= found.step_s
        assert found.step_s <= (found.compute_s + found.communicate_s) * (1 + 1e-12)
        slower = StepModel(model.graph, model.costs, model.all_reduce, overlap_rate=0.5 * rate)
        assert slower.times(state).step_s >= found.step_s
        assert [set(one.outputs) for one in model.regions(state)] == [
            reference.outputs(regions, r) for r in range(len(regions))
        ]
        copies += sum(len(held) for _, held in regions)
    assert copies > 0


@pytest.mark.parametrize("seed", range(4))
def test_seconds_are_kept_up_to_date_and_nothing_is_lost(seed):
    """What changes say that they changed is all that changed; every operator still runs."""
    model = model_of(random_step(seed, 4))
    state = random_state(model, np.random.default_rng(seed))
    regions = model.regions(state)
    for one in regions:
        assert state.seconds[one.number] == pytest.approx(model.costs(one.operators, one.outputs), rel=1e-12)
    assert state.seconds.sum() == pytest.approx(sum(one.end_s - one.start_s for one in regions))
    assert {i for one in regions for i in one.operators} == set(range(len(model.graph.operators)))
    assert all(int(state.fusion.home[region.number]) == region.number for region in regions)
    assert [one.start_s for one in regions[1:]] == [one.end_s for one in regions[:-1]]


def test_a_plan_can_be_carried_out_by_itself():
    """Whoever runs regions in order finds each input in a region before, or in the own one (the first that has it)."""
    model = model_of(random_step(5, 4))
    state = random_state(model, np.random.default_rng(1))
    plan = plan_of(model, state, planner="test")
    number = {one.name: i for i, one in enumerate(model.graph.operators)}
    regions, before = [{number[name] for name in names} for names in plan.regions], set()
    for region in regions:
        assert {i for one in region for i in model.graph.operators[one].inputs} <= before | region
        before |= region
    assert sorted(plan.parameters) == sorted(model.graph.operators[i].gradient for i in model.graph.gradients)
    assert plan.size_bytes == sum(model.graph.operators[i].output_bytes for i in model.graph.gradients)
    assert max(plan.lower_bound_s, whole_s(model)) <= plan.predicted_step_s * (1 + 1e-12)


@pytest.mark.parametrize(
    "line", [LinkCost(latency_s=-1.0, s_per_byte=0.0), LinkCost(latency_s=0.0, s_per_byte=float("inf"))]
)
def test_a_line_that_falls_is_refused(line):
    with pytest.raises(InputError, match="expected finite figures of at least 0"):
        StepModel(GOOD, AnalyticCosts(GOOD, DEVICE), line)


@pytest.mark.parametrize("rate", [0.0, 1.1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match="expected a share above 0 and up to 1"):
        StepModel(
            GOOD, AnalyticCosts(GOOD, DEVICE), LinkCost(latency_s=0.0, s_per_byte=0.0), overlap_rate=rate
        )


def test_computing_is_slower_while_a_bucket_travels():
    """The gradient is there after 1 s and travels for 2, in which the second operator's 2 s get on by a half."""
    graph = FusionGraph(operators=(operator("a", gradient="v"), operator("b", 0)))
    for rate, step_s in ((1.0, 3.0), (0.5, 4.0)):
        plan = disco(
            graph,
            regions=lambda operators, _: float(sum(1 + i for i in operators)),
            all_reduce=LinkCost(latency_s=2.0, s_per_byte=0.0),
            overlap_rate=rate,
        )
        assert plan.predicted_step_s == pytest.approx(step_s)


def test_costs_that_are_no_time_are_named():
    model = StepModel(GOOD, lambda operators, outputs: float("nan"), LinkCost(latency_s=0.0, s_per_byte=0.0))
    with pytest.raises(InputError, match=r"operators \(0,\) cost nan s"):
        model.alone()


def test_random_graphs_need_operators_for_their_gradients():
    with pytest.raises(InputError, match="got 5 gradients of 4 operators"):
        random_graph(0, 4, 5)
