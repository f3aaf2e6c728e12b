"""Groups of modules: all modules once, in an order in which they can run."""

from __future__ import annotations

import msgspec

from tests.sim.deployment_jobs import random_model
from wirewise.planners.placement.tag.grouping import group_modules
from wirewise.trace import StageModule, StageTrace
from wirewise_papers.tag.random_models import random_model as drawn_model


def test_groups_can_run_one_after_the_other():
    models = [random_model(seed, 12, skips=seed % 6) for seed in range(20)] + [
        drawn_model(s) for s in range(20)
    ]
    for trace in models:
        for wanted in (1, 3, 6, 40):
            found = group_modules(trace, wanted)
            modules = [m for group in found for m in group]
            assert sorted(modules) == list(range(len(trace.modules)))
            assert len(found) <= wanted or wanted >= len(trace.modules)
            place = {m: i for i, group in enumerate(found) for m in group}
            assert all(place[a] <= place[b] for a, b in trace.flows)


def test_the_longer_branch_goes_first_and_cuts_are_where_few_bytes_flow():
    def module(name, seconds, size=1e6):
        return StageModule(name=name, forward_s=(seconds,), backward_s=(seconds,), output_bytes=size)

    trace = StageTrace(
        modules=(module("in", 1), module("short", 1), module("long", 5), module("out", 1)),
        edges=(("in", "short"), ("in", "long"), ("short", "out"), ("long", "out")),
    )
    assert group_modules(trace, 4) == [[0], [2], [1], [3]]
    chain = StageTrace(modules=tuple(module(f"m{i}", 1, 1e3 if i == 2 else 1e8) for i in range(6)))
    assert group_modules(chain, 2) == [[0, 1, 2], [3, 4, 5]]
    assert group_modules(msgspec.structs.replace(chain, modules=chain.modules[:1]), 4) == [[0]]
