"""Steps under parallel plans: gradients travel once, beside the backward pass, one by one or together."""

import pytest
from msgspec.structs import replace

from tests.planners.parallel import graphs
from wirewise.cost import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.buckets import assign_buckets
from wirewise.planners.parallel.rhino.explore import plan_of
from wirewise.planners.parallel.rhino.known import data_parallel
from wirewise.sim import predict
from wirewise.trace.operator_graph import OperatorGraph

LINKS = Links.uniform(4, 1e7, 1e-4)


def graph(phase: str) -> OperatorGraph:
    """Two matrices; the output counts to a phase."""
    found = graphs.mlp(64, 32)
    return replace(found, nodes=(*found.nodes[:-1], replace(found.nodes[-1], phase=phase)))


def planned(step: OperatorGraph):
    return plan_of(ParallelProblem(graph=step, links=LINKS), data_parallel, "data parallel")


def step_s(step: OperatorGraph, plan) -> float:
    return predict(plan, step, LINKS).step_s


def test_gradients_travel_once_whatever_pass_the_output_counts_to():
    plans = {phase: replace(planned(graph(phase)), buckets=()) for phase in ("forward", "backward")}
    seconds = {phase: step_s(graph(phase), plan) for phase, plan in plans.items()}
    assert seconds["forward"] == pytest.approx(seconds["backward"], rel=1e-9)
    sent_s = plans["forward"].collective_bytes / 4 / 1e7
    latency_s = len(plans["forward"].collectives) * 6 * 1e-4
    assert seconds["forward"] <= graph("forward").time_s + sent_s + latency_s


def test_buckets_save_the_start_of_messages_and_wait_for_their_last_tensor():
    step = graph("forward")
    plan = replace(planned(step), buckets=())
    together = assign_buckets(plan, step, 1 << 30, 1 << 30)
    (bucket,) = together.buckets
    assert len(bucket) >= 2
    # Six rounds of an all-reduce of four ranks, for each message that there is less.
    saved_s = (len(bucket) - 1) * 6 * 1e-4
    assert step_s(step, plan) - saved_s <= step_s(step, together)
    apart = assign_buckets(plan, step, 1, 1)
    assert apart.buckets == () and step_s(step, apart) == step_s(step, plan)
