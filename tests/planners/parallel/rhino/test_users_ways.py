"""Ways of users as plans: what they send, and that their steps can be predicted."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.cost import Links
from wirewise.planners.parallel.rhino.buckets import DDP_BYTES
from wirewise.planners.parallel.rhino.users_ways import plan_of_way
from wirewise.sim import predict
from wirewise_papers.rhino import experiment as rhino
from wirewise_papers.rhino.job import CUTS, RhinoOptions

LINKS = Links.uniform(4, 1e7, 1e-4)


@pytest.fixture(scope="module")
def graph():
    return rhino.graph_of(RhinoOptions(model="mlp"), {"batch": 32, "width": 256, "layers": 2})


def steps_of(plan):
    return [(step.kind, step.size_bytes) for _, step, _ in plan.collectives]


def test_ddp_sums_gradients_in_buckets(graph):
    plan = plan_of_way("ddp", graph, LINKS)
    sizes = [sum(plan.moves[n].steps[0].size_bytes for n in bucket) for bucket in plan.buckets]
    # The matrix of the last layer fills the first bucket; all others go together.
    assert len(sizes) == 1 and graph.parameter_bytes - sizes[0] == 4 * 4 * 256 * 256 >= DDP_BYTES[0]
    assert plan.collective_bytes == pytest.approx(6 * graph.parameter_bytes, rel=1e-4)
    one_by_one = msgspec.structs.replace(plan, buckets=())
    assert predict(plan, graph, LINKS).step_s > graph.time_s / 4
    assert predict(plan, graph, LINKS).step_s != predict(one_by_one, graph, LINKS).step_s


def test_fsdp_gathers_each_block_for_each_pass(graph):
    plan = plan_of_way("fsdp", graph, LINKS)
    block = graph.parameter_bytes // 2
    kinds = sorted(one for one in steps_of(plan) if one[1] > 4)
    assert kinds == [*[("all_gather", block)] * 4, *[("all_reduce", block)] * 2]
    alone = 3 * graph.parameter_bytes / 4 * 4 / 1e7
    assert predict(plan, graph, LINKS).step_s > alone


def test_layers_split_by_hand_sum_activations(graph):
    plan = plan_of_way("tensor", graph, LINKS, CUTS)
    rows = 4 * 32 * 256
    # Behind each pair forward, and in front of each backward but the first, whose input has no gradient.
    assert [one for one in steps_of(plan) if one[1] >= rows] == [("all_reduce", rows)] * 3
    held = {graph.nodes[n].source: plan.placements[n] for n in range(len(graph.nodes))}
    assert held["blocks.1.up.weight"] == ("S0",) and held["blocks.0.down.weight"] == ("S1",)


def test_a_way_that_is_none_of_users_has_no_plan(graph):
    assert plan_of_way("tag", graph, LINKS) is None
