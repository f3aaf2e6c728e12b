"""Captured steps made again from the record of their operators: the same loss and gradients, bit for bit."""

from __future__ import annotations

import msgspec
import pytest
import torch

from wirewise.errors import InputError
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.parallel.rebuilt import rebuild_step
from wirewise.runtime.parallel.verify import reference_outputs
from wirewise.trace.operator_graph import read_operator_graph, write_operator_graph
from wirewise_papers.parallel_models import MODELS


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_step_from_its_record_computes_the_same(name, tmp_path):
    model, inputs = MODELS[name]()
    step = capture_step(model, inputs)
    write_operator_graph(step.graph, tmp_path / "graph.json")
    again = rebuild_step(read_operator_graph(tmp_path / "graph.json"))
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {key: value.detach() for key, value in state.items()}
    wanted, found = (reference_outputs(one, inputs, state) for one in (step, again))
    for number in (step.graph.loss, *step.graph.gradients.values()):
        own = step.graph.nodes[number].name
        assert torch.equal(found[own], wanted[own]), own


def test_an_operator_that_torch_does_not_have_is_named():
    graph = capture_step(*MODELS["mlp"]()).graph
    nodes = list(graph.nodes)
    number = next(n for n, node in enumerate(nodes) if node.op == "aten.gelu.default")
    nodes[number] = msgspec.structs.replace(nodes[number], op="module.Odd")
    with pytest.raises(InputError, match=r"operator 'module.Odd' of node 'gelu.*capture the model here"):
        rebuild_step(msgspec.structs.replace(graph, nodes=tuple(nodes)))
