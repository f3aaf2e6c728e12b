"""Tensors in pieces: exact, and never longer than without in the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.planners.fusion.brute import best_of_all
from wirewise.cost.curve import ZERO, Curve
from wirewise.cost.gradients import V100
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake import (
    CompressionProblem,
    Option,
    compression_problem,
    parse_split,
    plan_groups,
    solve,
    step_s,
    with_splits,
)
from wirewise.planners.fusion.cupcake.replan import groups_of
from wirewise.plans.splits import splits_of
from wirewise.trace.gradients import GradientTensor, GradientTrace, read_gradient_trace

PLACES = ("inline", "lazy", "queue")


def random_problem(seed: int) -> CompressionProblem:
    """A few tensors with a giant among them; encoding is flat, then linear."""
    random = np.random.default_rng(seed)
    n, count = int(random.integers(2, 5)), int(random.integers(1, 3))
    elements = random.integers(100, 20_000, n)
    elements[random.integers(n)] = random.integers(20_000, 33_000)

    def curve() -> Curve:
        knee = random.uniform(1e3, 2e4)
        return Curve(((knee, flat := random.uniform(0, 0.3)), (2 * knee, 2 * flat)))

    def option(number: int) -> Option:
        send = Curve.line(*random.uniform(0, [0.1, 5e-5]))
        return Option(f"codec{number}", "all_gather", str(random.choice(PLACES)), curve(), send, curve())

    return CompressionProblem(
        elements=elements.tolist(),
        gaps_s=random.random(n).tolist(),
        options=tuple(option(i) for i in range(count)),
        forward_s=float(random.random()),
        names=[f"t{i}" for i in range(n)],
    )


def by_hand(problem: CompressionProblem, most: int) -> CompressionProblem:
    """The chain with every larger tensor as about equal pieces, built without the planner's rule."""
    elements, gaps = [], []
    for size, gap in zip(problem.elements, problem.gaps_s, strict=True):
        count = -(-size // most)
        each = next(e for e in range(4096, size + 4096, 4096) if e * count >= size) if count > 1 else size
        while size > 0:
            elements.append(min(each, size))
            gaps.append(gap)
            size, gap = size - each, 0.0
    return replace(problem, elements=elements, gaps_s=gaps, names=())


@pytest.mark.slow
def test_the_step_is_that_of_the_best_of_all_plans_of_the_pieces():
    """B1, with pieces: every group of neighbours, also inside a tensor, with every option."""
    assert compare(range(10)) > 2


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_step_is_that_of_the_best_of_all_plans_of_many_chains_of_pieces():
    assert compare(range(1000, 1100)) > 20


def compare(seeds: range) -> int:
    """How many steps get shorter by 1 % or more."""
    shorter = 0
    for seed in seeds:
        problem = random_problem(seed)
        plan = plan_groups(problem, split=8_192)
        best, _ = best_of_all(by_hand(problem, 8_192))
        assert plan.predicted_step_s == pytest.approx(best, rel=1e-9)
        assert plan.lower_bound_s <= best * (1 + 1e-12)
        assert plan.predicted_step_s <= plan.unsplit_step_s * (1 + 1e-9)
        shorter += plan.predicted_step_s < 0.99 * plan.unsplit_step_s
        plan.check_itself()
    return shorter


@pytest.mark.slow
def test_auto_splits_if_that_gains_enough():
    split = 0
    for seed in range(10):
        problem = random_problem(seed)
        whole, best = plan_groups(problem), plan_groups(problem, split="auto")
        assert best.unsplit_step_s == whole.predicted_step_s and whole.unsplit_step_s == 0.0
        if best.splits:
            split += 1
            assert best.predicted_step_s <= 0.98 * whole.predicted_step_s
        else:
            assert best.buckets == whole.buckets
    assert 0 < split < 10


def test_a_plan_with_pieces_is_priced_as_it_says():
    problem = random_problem(3)
    plan = plan_groups(problem, split=8_192)
    again = with_splits(problem, plan.splits)
    assert plan.splits == splits_of(dict(zip(problem.names, problem.elements, strict=True)), 8_192)
    assert [name for bucket in plan.buckets for name in bucket.parameters] == again.names
    assert step_s(again, groups_of(again, plan)) == pytest.approx(plan.predicted_step_s)
    assert plan.size_bytes == 4 * sum(problem.elements)
    assert plan.parameters == list(problem.names)
    assert plan.baseline_step_s == plan_groups(problem).baseline_step_s


def test_encoding_a_giant_hides_behind_sending_it():
    """Figures by hand: 4 pieces of 4096, 1 s to encode and 1 s to send each: 5 s rather than 8."""
    line = Curve.line(0.0, 1 / 4096)
    option = Option("codec", "all_gather", "inline", line, line, ZERO)
    problem = CompressionProblem(elements=[4 * 4096], gaps_s=[0.0], options=(option,))
    plan = plan_groups(problem, split="auto")
    assert (plan.predicted_step_s, plan.unsplit_step_s) == (pytest.approx(5.0), pytest.approx(8.0))
    assert plan.splits == {"0": 4096} and len(plan.buckets) == 4


@pytest.mark.parametrize(
    ("model", "codec", "gbit", "least"),
    [("vgg16", "dgc", 1, 0.05), ("gpt2", "dgc", 1, 0.02), ("vgg16", "none", 1, None)],
)
def test_recorded_models_with_giants_gain_by_pieces(wirewise_data, model, codec, gbit, least):
    """4 ranks: where encoding and sending the giant take about as long, and nothing where one of them does all."""
    trace = read_gradient_trace(wirewise_data / "gradient-traces" / f"{model}.json")
    plan = plan_groups(
        compression_problem(trace, Links.uniform(4, gbit * 1e9 / 8), codec=[codec], costs=V100), split="auto"
    )
    if least is None:
        assert not plan.splits
    else:
        assert plan.predicted_step_s <= (1 - least) * plan.unsplit_step_s
        assert plan.lower_bound_s <= plan.predicted_step_s


def test_rules_keep_tensors_whole_unless_a_size_is_given():
    problem = random_problem(1)
    assert not plan_groups(problem, method="layer-wise", split="auto").splits
    split = plan_groups(problem, method="layer-wise", split=8_192)
    assert split.lower_bound_s == solve(with_splits(problem, split.splits)).lower_bound_s
    assert len(split.buckets) == sum(len(b.parameters) for b in split.buckets) > len(problem.elements)


def of_matrices() -> CompressionProblem:
    knots = ((1e3, 1e-4), (1e6, 1e-1))
    codecs = {**V100.codecs, "powersgd": type(V100.codecs["dgc"])(knots, knots)}
    trace = GradientTrace(tensors=(GradientTensor(name="a", elements=1_000_000, gap_us=10.0),))
    return compression_problem(
        trace, Links.uniform(2, 1e8), codec=["powersgd"], costs=type(V100)(device="d", codecs=codecs)
    )


def test_codecs_of_matrices_keep_tensors_whole():
    assert not plan_groups(of_matrices(), split="auto").splits
    with pytest.raises(InputError, match="'powersgd' needs whole matrices"):
        plan_groups(of_matrices(), split=8_192)


def test_words_for_splits():
    assert parse_split("auto") == "auto" and parse_split("none") == "none" and parse_split("16MiB") == 1 << 22
    for word in ("1B", "big", "-3"):
        with pytest.raises(InputError, match="says no limit for pieces"):
            parse_split(word)
    problem = random_problem(0)
    for splits, words in (({"x": 4096}, "which has 0"), ({"t0": 1 << 20}, "smaller pieces")):
        with pytest.raises(InputError, match=words):
            with_splits(problem, splits)
    with pytest.raises(InputError, match="pieces of 0 elements"):
        plan_groups(problem, split=0)
    assert solve(with_splits(problem, {})).groups == solve(problem).groups
