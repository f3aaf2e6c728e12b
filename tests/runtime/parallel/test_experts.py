"""Stacked weights of experts, as models of transformers have them: cut by a planner, and along each dimension."""

from __future__ import annotations

import pytest
from torch.utils import _pytree as pytree

from tests.runtime.parallel.compared import SLOW, close, compare, eager, one_rank
from tests.runtime.parallel.public_models import mixtral
from tests.runtime.parallel.ranks import on_mesh
from wirewise.cost.links import Links
from wirewise.planners.parallel.rhino.users_ways import plan_of_way
from wirewise.runtime.joint_graph import capture_step, model_loss
from wirewise.runtime.parallel.parts import whole_of_parts
from wirewise.sim.operator_times import roofline_times


@pytest.mark.slow
def test_a_planner_cuts_the_weights_of_experts():
    plan = compare(*mixtral(), mesh=(4,))
    step = capture_step(*mixtral())
    experts = [
        plan.placements[number]
        for number, node in enumerate(step.graph.nodes)
        if node.op == "parameter" and ".experts." in node.source
    ]
    assert len(experts) == 4 and all(words[0].startswith("S") for words in experts)
    products = [node for node in step.graph.nodes if "grouped_mm" in node.op]
    assert all(node.flops > 0 for node in products)


@pytest.mark.slow  # a search of 12 s; the operators in the fast tier: tests/planners/parallel/rhino/test_dispatch.py
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.sample(1)
def test_experts_are_right_in_microbatches(stages):
    """Each microbatch sorts its own tokens by their expert."""
    plan = compare(*mixtral(), mesh=(2,), stages=stages, microbatches=2)
    assert plan.microbatches == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("up", "down"), [("S0", "S0"), ("S1/2", "S1"), ("S2", "S2")], ids=["experts", "inputs", "outputs"]
)
@pytest.mark.sample(2)
def test_weights_of_experts_are_right_cut_by_any_dimension(up, down):
    model, inputs = mixtral()
    step = capture_step(model, inputs)
    cuts = {"*.experts.gate_up_proj": up, "*.experts.down_proj": down}
    links = Links.uniform(4, 1e9, 1e-5)
    plan = plan_of_way("tensor", roofline_times(step.graph, SLOW), links, cuts)
    numbers = {node.source: n for n, node in enumerate(step.graph.nodes) if node.op == "parameter"}
    assert plan.placements[numbers["model.layers.0.mlp.experts.gate_up_proj"]] == (up,)
    state = {name: one.detach() for name, one in (*model.named_parameters(), *model.named_buffers())}
    found = on_mesh((4,), one_rank, step, plan, pytree.tree_leaves(inputs), state)
    wanted, gradients, _ = eager(model, inputs, model_loss)
    for loss, parts, _ in found:
        close(loss, wanted, "the loss")
        assert parts.keys() == gradients.keys()
    for name, gradient in gradients.items():
        parts = [of_rank[1][name] for of_rank in found]
        close(whole_of_parts(parts, plan.placement_of(numbers[name]), (4,)), gradient, name)
