"""Plans of the planner carried out by threads: every node has what one device has, for every model and mesh."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.cost.links import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel import verify
from wirewise.topology import lab_hosts
from wirewise_papers.parallel_models import MODELS


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(4,), (2, 2)], ids=["4", "2x2"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sample(5)
def test_every_node_is_that_of_one_device(name, mesh):
    model, inputs = MODELS[name]()
    step = capture_step(model, inputs)
    nodes = tuple(msgspec.structs.replace(node, time_s=node.flops / 1e8) for node in step.graph.nodes)
    graph = msgspec.structs.replace(step.graph, nodes=nodes)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {key: value.detach() for key, value in state.items()}
    for rate in ("200mbit", "10gbit"):
        links = Links.of(lab_hosts([rate] * 4))
        plan = make_plan(ParallelProblem(graph=graph, links=links), stages=1, mesh=mesh)
        verify(plan, step, inputs, state)
