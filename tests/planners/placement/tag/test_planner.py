"""Plans of TAG and of what it is compared with: never slower than data parallelism, never out of memory."""

from __future__ import annotations

from math import inf

import msgspec
import pytest

from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS
from wirewise.planners.placement.tag import problem_of
from wirewise.plans import loads
from wirewise.sim import predict
from wirewise.topology import lab_hosts
from wirewise.topology.unequal import UnequalHost, unequal_hosts
from wirewise_papers.tag.random_models import random_model, random_problem

TAG = PLANNERS["deployment"]["tag"]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_slower_than_data_parallel_and_all_plans_say_what_is_simulated(seed):
    problem = random_problem(seed, hosts=2 + seed % 2, groups=5)
    found = TAG(problem, playouts=30, simulations=150, seed=seed)
    assert found.predicted_step_s <= found.baseline_step_s
    for plan in (
        found,
        *(PLANNERS["deployment"][name](problem) for name in ("data-parallel", "proportional", "baechi")),
    ):
        assert loads(plan.to_json()) == plan
        assert predict(plan, problem.trace, problem.links).step_s == pytest.approx(plan.predicted_step_s)
        assert plan.predicted_bytes == tuple(
            map(int, problem.simulator.step(problem.spread(problem.baseline())).memory)
        ) or (plan.planner != "data-parallel")


def slow_and_fast(**memory):
    return unequal_hosts(
        [UnequalHost(1, "slow", 0.25, 6.25e6, **memory), UnequalHost(1, "fast", 1.0, 6.25e6, **memory)]
    )


def test_a_slow_link_between_unequal_devices_is_what_it_is_for():
    trace = random_model(4, "convolutions")
    found = TAG(trace, slow_and_fast(), batch=32, playouts=40, simulations=400)
    assert found.baseline_step_s >= 1.2 * found.predicted_step_s


def test_memory_that_is_short_is_said_and_little_of_it_is_enough():
    trace = random_model(4, "convolutions")
    need = max(TAG(trace, slow_and_fast(), batch=32, playouts=0, simulations=50).predicted_bytes)
    with pytest.raises(PlanError, match=r"device 'gpu\d' lacks .* give more or larger devices"):
        TAG(trace, slow_and_fast(memory_bytes=0.05 * need), batch=32, playouts=20, simulations=200)
    whole = problem_of(trace, slow_and_fast(), batch=32)
    replicated = max(PLANNERS["deployment"]["data-parallel"](whole).predicted_bytes)
    # Replicas do not fit, halves of the model do.
    room = 0.8 * replicated
    tight = problem_of(trace, slow_and_fast(memory_bytes=room), batch=32)
    assert tight.seconds_of(tight.baseline()) == inf
    found = TAG(tight, playouts=40, simulations=600)
    assert max(found.predicted_bytes) <= room


def test_what_it_cannot_plan_for_is_refused():
    trace = random_model(1)
    nothing = dict.fromkeys(("forward_s", "backward_s", "weight_gradient_s"), (0.0,) * len(trace.sizes))
    idle = msgspec.structs.replace(
        trace, modules=tuple(msgspec.structs.replace(one, **nothing) for one in trace.modules)
    )
    for call, kind, message in (
        (lambda: TAG(trace, None), InputError, "expected the Topology"),
        (lambda: TAG(None), InputError, "a model on unequal devices"),
        (lambda: TAG(trace, lab_hosts(["1gbit"] * 2), batch=0), InputError, "0 rows"),
        (lambda: TAG(trace, lab_hosts(["1gbit"] * 2), playouts=-1), PlanError, "-1 playouts"),
        (lambda: TAG(trace, lab_hosts(["1gbit"] * 2), weights=__file__), InputError, "expected weights by"),
        (
            lambda: TAG(trace, lab_hosts(["1gbit"] * 2), profiles={"x": random_model(2)}),
            InputError,
            "profile of 'x' is of other modules",
        ),
        (
            lambda: TAG(trace, lab_hosts(["1gbit"] * 2), profiles={"x": trace}),
            InputError,
            "got profiles of 'x'; expected types of the devices: they have none",
        ),
        (lambda: TAG(idle, lab_hosts(["1gbit"] * 2)), InputError, "modules take no time at all"),
    ):
        with pytest.raises(kind, match=message):
            call()


def test_fewer_rows_than_devices():
    found = TAG(random_model(3), lab_hosts(["1gbit"] * 3), batch=2, playouts=10, simulations=60)
    assert all(len(group.devices) <= 2 or group.communication == "mp" for group in found.groups)
