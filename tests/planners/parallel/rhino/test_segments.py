"""Segment by segment: near the whole programme, with a bound."""

import pytest

from tests.planners.parallel import graphs
from tests.planners.parallel.rhino.costs import ByteCosts
from wirewise.planners.parallel.rhino.segments import joints_of, segments_of, solve_by_segments
from wirewise.planners.parallel.rhino.shardings import ShardingProblem

GRAPHS = {
    "mlp": lambda: graphs.mlp(64, 32),
    "layers": lambda: graphs.layers(rows=192, width=64, batch=4, count=2),
    "gpt": lambda: graphs.gpt(batch=4, length=8, width=32, heads=4, words=64),
    "experts": lambda: graphs.moe(batch=4, length=16, width=64, experts=4, capacity=4, wide=64),
    "convolutions": lambda: graphs.wide_resnet(channels=(16, 64, 256)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n != "mlp" else n for n in GRAPHS]
)
def test_p3_segments_cost_at_most_a_tenth_more_than_the_whole(name):
    problem = ShardingProblem(graph=GRAPHS[name](), mesh=(4,), costs=ByteCosts())
    whole, parts = problem.problem.solve(), solve_by_segments(problem)
    assert parts.bound <= whole.cost * (1 + 1e-9)
    assert whole.cost * (1 - 1e-9) <= parts.cost <= 1.10 * whole.cost


def test_segments_end_where_one_tensor_alone_goes_on():
    problem = ShardingProblem(graph=graphs.layers(rows=64, width=32, batch=4), mesh=(2,), costs=ByteCosts())
    joints = joints_of(problem)
    nodes = problem.graph.nodes
    for joint in joints:
        later = [n for n in range(joint + 1, len(nodes)) if nodes[n].phase == "forward" and nodes[n].computes]
        assert all(i >= joint or not nodes[i].computes for n in later for i in nodes[n].inputs), nodes[
            joint
        ].name
    segment, ends = segments_of(problem)
    assert set(segment) == set(range(len(ends) + 1))


@pytest.mark.slow
def test_p4_gpt_of_24_layers_is_planned_by_either_level():
    problem = ShardingProblem(graph=graphs.gpt(layers=24), mesh=(8,), costs=ByteCosts())
    whole, parts = problem.problem.solve(), solve_by_segments(problem)
    assert len(problem.graph.nodes) > 2000
    assert whole.cost - whole.bound <= 1e-6 * whole.cost
    assert parts.bound <= whole.cost <= parts.cost * (1 + 1e-9) <= 1.10 * whole.cost
