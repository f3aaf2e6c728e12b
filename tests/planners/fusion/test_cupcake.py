"""Groups of gradients against all plans there are, with a model of a step that is written again here."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.harness.tiers import keep, spread
from tests.planners.fusion.brute import best_of_all
from tests.planners.fusion.problems import random_compression
from wirewise.cost.curve import ZERO, Curve
from wirewise.errors import InputError, PlanError
from wirewise.planners.fusion.cupcake import (
    CompressionProblem,
    GradientGroup,
    Option,
    by_rule,
    cupcake,
    lower_bound_s,
    plan_groups,
    solve,
    step_s,
    times,
)
from wirewise.planners.fusion.cupcake.linear import lines
from wirewise.planners.fusion.cupcake.plane import plane

LEAST = 1e-9


KINDS = {"linear": 250, "flat": 250, "inline": 250, "decode": 100, "codecs": 100, "beside": 50}


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_step_is_that_of_the_best_of_all_plans(kind):
    """B1: within 1e-9, and no plan is below the bound."""
    for seed in range(KINDS[kind] // 10):
        compare(random_compression(seed, kind))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(2)
def test_the_step_is_that_of_the_best_of_all_plans_of_many_problems(kind):
    """B1 on 1000 instances in all, up to 12 tensors."""
    for seed in spread(range(KINDS[kind]), 5):
        compare(random_compression(seed + 1000, kind))


def compare(problem):
    found, (best, _) = solve(problem), best_of_all(problem)
    assert found.optimal and found.step_s == pytest.approx(best, rel=LEAST)
    assert found.lower_bound_s <= best * (1 + 1e-12)
    assert [group.first for group in found.groups] == [0, *(g.last + 1 for g in found.groups[:-1])]
    assert found.groups[-1].last == len(problem.elements) - 1


@pytest.mark.parametrize("kind", keep(["linear", "beside"], KINDS))
@pytest.mark.slow
@pytest.mark.sample(3)
def test_all_plans_of_a_problem_have_one_bound(kind):
    """A proved optimum leaves no gap, and no rule, slack or gain makes another bound or a step below it."""
    for seed in range(3):
        problem = random_compression(seed, kind)
        found = solve(problem)
        assert found.optimal and found.gap == 0.0
        plans = [
            plan_groups(problem, method=rule) for rule in ("layer-wise", "even:3", "mg-wfbp", "mergecomp")
        ]
        plans += [plan_groups(problem), cupcake(problem), cupcake(problem, slack=0.3, least_gain=0.9)]
        assert {plan.lower_bound_s for plan in plans} == {found.lower_bound_s}
        assert min(plan.predicted_step_s for plan in plans) >= found.lower_bound_s * (1 - LEAST)


def test_a_plan_without_codecs_has_the_bound_of_all_options():
    problem = paying(0.9)
    plan = cupcake(problem, least_gain=0.5)
    assert not plan.compresses and plan.predicted_step_s > plan.lower_bound_s == solve(problem).step_s


@pytest.mark.parametrize("share", [0.5, 0.9, 1.5])
@pytest.mark.slow
@pytest.mark.sample(1)
def test_plans_that_compress_nothing_have_seconds_of_their_own(share):
    """Collectives in flight at once are priced as such, and only in plans whose groups all go without a codec."""
    kinds = set()
    for seed in range(40):
        problem = random_compression(seed, "codecs")
        plain = [option for option in problem.options if option.codec == "none"]
        if not plain or len(plain) == len(problem.options):
            continue
        alone = tuple(replace(o, communicate_s=o.communicate_s.times(share)) for o in plain)
        both = replace(problem, alone=alone)
        found, without = solve(both), best_of_all(both.uncompressed())[0]
        best = min(best_of_all(problem)[0], without)
        assert found.lower_bound_s <= best * (1 + 1e-12)
        assert lower_bound_s(both) <= best * (1 + 1e-12)
        if share < 1:
            assert found.optimal and found.step_s == pytest.approx(best, rel=LEAST)
        compresses = any(problem.options[group.option].codec != "none" for group in found.groups)
        kinds.add(compresses)
        if not compresses:
            assert found.step_s == pytest.approx(without, rel=LEAST)
        plan = cupcake(both, least_gain=1.0, slack=0.0)
        assert not plan.compresses and plan.predicted_step_s == pytest.approx(without, rel=LEAST)
    assert kinds == {True, False}


def test_ways_of_plans_that_compress_nothing_are_those_without_a_codec():
    problem = random_compression(0, "codecs")
    with pytest.raises(InputError, match="are other ways than those without a codec"):
        replace(problem, alone=(Option("none", "hierarchical", "inline", ZERO, ZERO, ZERO),))


def test_all_plans_are_tried():
    """There are o (o + 1)^(n - 1) of them."""
    for seed in range(20):
        problem = random_compression(seed, "codecs")
        n, options = len(problem.elements), len(problem.options)
        assert best_of_all(problem)[1] == options * (options + 1) ** (n - 1)


@pytest.mark.parametrize("room", [1, 2, 8])
def test_walks_with_little_room_bound_from_below_and_prove_only_the_best(room):
    """Labels that stand for several never make a plan look slower than it is."""
    proved = 0
    for seed in range(40):
        problem = random_compression(seed, "inline")
        found = plane(problem, [GradientGroup(0, len(problem.elements) - 1, 0)], 1e-10, [room])
        best = best_of_all(problem)[0]
        assert found.bound_s <= best * (1 + 1e-12) <= step_s(problem, found.groups) * (1 + 2e-12)
        if found.bound_s >= step_s(problem, found.groups) * (1 - 2e-10):
            proved += 1
            assert step_s(problem, found.groups) == pytest.approx(best, rel=LEAST)
    assert proved > 0


def test_the_three_solvers_agree(monkeypatch):
    """Walks and label setting are as good as the dynamic programme on straight lines, which has its own code."""
    for seed in range(30):
        problem = random_compression(seed, "linear")
        assert lines(problem) is not None
        monkeypatch.undo()
        straight, module = solve(problem).step_s, sys.modules[solve.__module__]
        monkeypatch.setattr(module, "lines", lambda problem: None)
        assert solve(problem).step_s == pytest.approx(straight, rel=LEAST)
        monkeypatch.setattr(module, "applies", lambda problem: False)
        assert solve(problem).step_s == pytest.approx(straight, rel=LEAST)


def plain(encode, send, n=12, seed=3):
    random = np.random.default_rng(seed)
    return CompressionProblem(
        elements=random.integers(100, 1_000_000, n).tolist(),
        gaps_s=(1e-3 * random.random(n)).tolist(),
        options=(Option("codec", "all_gather", "inline", Curve.line(*encode), Curve.line(*send), ZERO),),
        forward_s=2e-3,
    )


@pytest.mark.parametrize("seed", range(5))
class TestLimits:
    """B3."""

    def test_without_fixed_costs_each_tensor_goes_alone(self, seed):
        problem = plain((0.0, 1e-9), (0.0, 3e-9), seed=seed)
        assert solve(problem).step_s == pytest.approx(
            step_s(problem, by_rule(problem, "layer-wise")), rel=LEAST
        )

    def test_dear_collectives_make_one_group(self, seed):
        assert len(solve(plain((1e-4, 1e-9), (1e3, 3e-9), seed=seed)).groups) == 1

    def test_free_bytes_reach_the_bound(self, seed):
        found = solve(plain((1e-4, 1e-9), (1e-3, 0.0), seed=seed))
        assert found.step_s == pytest.approx(found.lower_bound_s, rel=LEAST)

    def test_the_bound_is_at_least_that_of_the_closed_form(self, seed):
        problem = plain((1e-4, 1e-9), (2e-4, 3e-9), seed=seed)
        s, b = problem.elements, problem.gaps_s
        closed = 2e-3 + max(
            sum(b) + 1e-4 + 1e-9 * sum(s) + 2e-4 + 3e-9 * s[-1],
            b[0] + 1e-4 + 1e-9 * s[0] + 2e-4 + 3e-9 * sum(s),
        )
        assert closed <= lower_bound_s(problem) * (1 + 1e-12) <= solve(problem).step_s * (1 + 1e-9)


def test_ends_of_a_small_example():
    """Figures by hand: two groups of 10 and 20 elements; encode 1, send 1 + x / 10, decode 2; ready at 1 and 3."""
    option = Option(
        "c", "all_gather", "lazy", Curve.line(1, 0), Curve.line(1, 0.1), Curve(((0.0, 2.0), (1.0, 2.0)))
    )
    problem = CompressionProblem(elements=[10, 20], gaps_s=[1.0, 2.0], options=(option,), forward_s=10.0)
    groups = [GradientGroup(0, 0, 0), GradientGroup(1, 1, 0)]
    ends = times(problem, groups)
    assert [end.tolist() for end in ends] == [[2, 5], [4, 8], [7, 10]]
    assert step_s(problem, groups) == 20
    inline = replace(problem, options=(replace(option, decode="inline"),))
    assert [end.tolist() for end in times(inline, groups)] == [[2, 5], [6, 11], [6, 11]]
    queue = replace(problem, options=(replace(option, decode="queue"),))
    assert times(queue, groups).decoded_s.tolist() == [6, 10]
    beside = replace(problem, encode_contention=0.5)
    # The second tensor is ready at 3.5, half of the first one's encoding later.
    assert times(beside, groups).encoded_s.tolist() == [2, 4.5]


def test_plans_are_equal_whatever_the_seed_says():
    problem = random_compression(7, "codecs")
    plan, again = (
        cupcake(random_compression(7, "codecs"), seed=4, least_gain=0.0, slack=0.0) for _ in range(2)
    )
    assert plan.to_json() == again.to_json() and plan.seed == 4
    assert cupcake(problem, seed=5, least_gain=0.0, slack=0.0).buckets == plan.buckets
    plan.check_itself()
    assert plan.size_bytes == 4 * sum(problem.elements)
    assert plan.predicted_step_s == solve(problem).step_s <= plan.baseline_step_s


def paying(share):
    """Compressing costs so much of the uncompressed step, by the collective of one tensor."""
    options = (
        Option("none", "all_reduce", "inline", ZERO, Curve.line(1.0, 0.0), ZERO),
        Option("sign", "all_gather", "inline", ZERO, Curve.line(share, 0.0), ZERO),
    )
    return CompressionProblem(elements=[10], gaps_s=[0.0], options=options)


@pytest.mark.parametrize(("share", "codec"), [(0.90, "sign"), (0.96, "sign"), (0.98, "none"), (0.99, "none")])
def test_compressing_has_to_gain_enough(share, codec):
    plan = cupcake(paying(share))
    assert plan.buckets[0].codec == codec
    assert plan.predicted_step_s == pytest.approx(share if codec == "sign" else 1.0)
    assert (plan.compressed_step_s, plan.uncompressed_step_s) == (pytest.approx(share), 1.0)
    assert plan.lower_bound_s <= plan.compressed_step_s
    assert cupcake(paying(share), least_gain=0.0).buckets[0].codec == "sign"
    assert plan_groups(paying(share)).buckets[0].codec == "sign"
    plan.check_itself()
    assert any(row[0] == "best without" for row in plan.table()[1])


def test_nothing_is_compared_where_there_is_no_choice():
    plan = cupcake(plain((1e-4, 1e-9), (2e-4, 3e-9)))
    assert plan.compressed_step_s == plan.uncompressed_step_s == 0
    with pytest.raises(InputError, match="least_gain is 2"):
        cupcake(paying(0.5), least_gain=2)


@pytest.mark.slow
def test_little_room_is_said_and_still_no_worse_than_a_rule():
    for seed in range(20):
        problem = random_compression(seed, "codecs")
        found = solve(problem, room=1)
        assert found.lower_bound_s <= found.step_s * (1 + 1e-12)
        assert found.step_s <= step_s(problem, by_rule(problem, "layer-wise"))
        if found.optimal:
            assert found.step_s == pytest.approx(best_of_all(problem)[0], rel=LEAST)


class TestRules:
    def test_cut_as_they_say(self):
        problem = plain((1e-4, 1e-9), (2e-4, 3e-9), n=10)
        assert len(by_rule(problem, "layer-wise")) == 10
        assert [(g.first, g.last) for g in by_rule(problem, "even:3")] == [(0, 3), (4, 6), (7, 9)]
        sizes = 4.0 * np.array(problem.elements)
        for group in by_rule(problem, "bucket:1")[:-1]:
            held = sizes[group.first : group.last + 1]
            assert held.sum() >= 2**20 > held[:-1].sum()

    def test_mg_wfbp_merges_what_is_ready_in_time(self):
        option = Option("none", "all_reduce", "inline", ZERO, Curve.line(1.0, 0.1), ZERO)
        problem = CompressionProblem(elements=[10] * 5, gaps_s=[1, 1, 5, 0.5, 4], options=(option,))
        # Alone the first begins at 1, and the second is ready at 2, within alpha of that; the third at 7 is not.
        assert [(g.first, g.last) for g in by_rule(problem, "mg-wfbp")] == [(0, 1), (2, 3), (4, 4)]

    def test_mergecomp_finds_the_best_single_cut_of_an_even_chain(self):
        option = Option("c", "all_gather", "inline", Curve.line(1e-4, 0), Curve.line(2e-4, 4e-9), ZERO)
        problem = CompressionProblem(elements=[100_000] * 16, gaps_s=[1e-3] * 16, options=(option,))
        cuts = [[GradientGroup(0, cut - 1, 0), GradientGroup(cut, 15, 0)] for cut in range(1, 16)]
        best = min(step_s(problem, groups) for groups in cuts)
        assert step_s(problem, by_rule(problem, "mergecomp")) <= best * (1 + 1e-12)

    def test_none_beats_cupcake(self):
        for seed in range(12):
            problem = random_compression(seed, "codecs")
            best = solve(problem).step_s * (1 - 1e-12)
            for name in (
                "layer-wise",
                "even:1",
                "even:2",
                "even:5",
                "bucket:25",
                "bucket:1",
                "mg-wfbp",
                "mergecomp",
            ):
                assert step_s(problem, by_rule(problem, name)) >= best

    @pytest.mark.parametrize(
        "name", ["best", "even", "even:0", "even:x", "bucket:-1", "layer-wise:3", "bucket:inf"]
    )
    def test_unknown_names_are_refused(self, name):
        with pytest.raises(PlanError, match=r"unknown|expected a number"):
            plan_groups(plain((0, 0), (0, 0)), method=name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gaps_s": [1.0]}, "expected as many"),
        ({"elements": [0] * 12}, "no elements"),
        ({"forward_s": -1.0}, "below 0"),
        ({"options": ()}, "an option or more"),
        ({"encode_contention": 2.0}, "a share from 0 to 1"),
    ],
)
def test_wrong_values_are_named(changes, words):
    with pytest.raises(InputError, match=words):
        replace(plain((0, 0), (0, 0)), **changes)
