from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.planners.pipeline.brute_force import every_cut
from tests.planners.pipeline.problems import random_trace
from wirewise.cost.stages import StageCosts
from wirewise.planners.pipeline.cuts import balanced_cut, best_cut, figures, prefixes
from wirewise.planners.pipeline.sums import ModuleSums
from wirewise.trace import StageModule, StageTrace


def summed(values):
    return np.concatenate([[0.0], np.cumsum(values)])


def test_a_balanced_cut_has_the_least_largest_sum():
    random = np.random.default_rng(0)
    for trial in range(400):
        modules = int(random.integers(1, 9))
        stages = int(random.integers(1, modules + 1))
        values = random.integers(0, 5, modules).astype(float) if trial % 2 else random.random(modules)
        sums = summed(values)
        bounds = balanced_cut(sums, stages)
        assert bounds[0] == 0 and bounds[-1] == modules and (np.diff(bounds) > 0).all()
        least = min(np.diff(sums[list(cut)]).max() for cut in every_cut(modules, stages))
        assert np.diff(sums[bounds]).max() == pytest.approx(least)


def test_later_stages_of_a_balanced_cut_are_as_full_as_they_may_be():
    assert balanced_cut(summed(np.ones(7)), 4).tolist() == [0, 1, 3, 5, 7]


def every_assignment(trace, stages):
    """Stage of each module, none empty, so that no stage needs a later one."""
    count = len(trace.modules)
    for of in itertools.product(range(stages), repeat=count):
        if len(set(of)) == stages and all(of[a] <= of[b] for a, b in trace.flows):
            yield of


def longest_and_sum(trace, of, stages, rate):
    names = [[m.name for n, m in enumerate(trace.modules) if of[n] == stage] for stage in range(stages)]
    costs = StageCosts.of(trace, names)
    took = [
        sum(size for (_, to), size in costs.edge_bytes.items() if to == stage) / rate
        for stage in range(1, stages)
    ]
    return max([*(costs.forward_s + costs.backward_s), *took]), sum(took)


@pytest.mark.parametrize("skips", [0, 2, "branches"])
def test_the_best_cut_is_that_of_all_assignments(skips):
    for seed in range(12):
        trace = random_trace(seed, 6, skips=skips if isinstance(skips, int) else 0)
        if skips == "branches":
            # Two arms between the first and the last module.
            edges = (("m0", "m1"), ("m1", "m2"), ("m2", "m5"), ("m0", "m3"), ("m3", "m4"), ("m4", "m5"))
            trace = StageTrace(modules=trace.modules, sizes=trace.sizes, edges=edges)
        sums, rate = ModuleSums(trace, 1), 60.0
        sets, all_of_them = prefixes(trace)
        assert all_of_them
        known = figures(sums, trace, sets)
        for stages in (1, 2, 3):
            took = [known.input_bytes / rate if stage else 0 * known.input_bytes for stage in range(stages)]
            cut = best_cut(sets, [np.maximum(known.compute_s, one) for one in took], took)
            of = [next(stage for stage, own in enumerate(cut) if module in own) for module in range(6)]
            found = longest_and_sum(trace, of, stages, rate)
            expected = min(
                longest_and_sum(trace, one, stages, rate) for one in every_assignment(trace, stages)
            )
            assert found == pytest.approx(expected)


def test_a_skip_keeps_what_it_joins_together():
    """A tensor of 900 bytes goes from the first to the third module; cutting behind the third saves it."""
    modules = tuple(
        StageModule(name=name, forward_s=(1.0,), backward_s=(2.0,), output_bytes=size)
        for name, size in zip("abcd", (900.0, 10.0, 10.0, 0.0), strict=True)
    )
    trace = StageTrace(modules=modules, edges=(("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")))
    known = figures(ModuleSums(trace, 1), trace, prefixes(trace)[0])
    for rate, expected in ((1e9, [[0, 1], [2, 3]]), (100.0, [[0, 1, 2], [3]])):
        took = [0 * known.input_bytes, known.input_bytes / rate]
        cost = [np.maximum(known.compute_s, one) for one in took]
        assert best_cut(known.sets, cost, took) == expected


def test_a_cut_that_nothing_allows_is_none():
    trace = random_trace(1, 4)
    known = figures(ModuleSums(trace, 1), trace, prefixes(trace)[0])
    nothing = [np.full_like(known.compute_s, np.inf)] * 2
    assert best_cut(known.sets, nothing, nothing) is None


def test_a_graph_with_too_many_sets_is_cut_in_the_order_of_its_list():
    """Twenty modules that only the last one needs."""
    modules = tuple(StageModule(name=f"m{n}", forward_s=(1.0,), backward_s=(1.0,)) for n in range(21))
    trace = StageTrace(modules=modules, edges=tuple((f"m{n}", "m20") for n in range(20)))
    sets, all_of_them = prefixes(trace)
    assert not all_of_them and sets == [(1 << n) - 1 for n in range(22)]
