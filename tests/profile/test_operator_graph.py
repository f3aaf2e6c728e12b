"""Measured seconds of the operators of a captured step: equal ones once, the largest from the rates of the others."""

from __future__ import annotations

from wirewise.profile.operator_graph import measured_times
from wirewise.runtime.joint_graph import capture_step
from wirewise_papers.parallel_models import mlp


def test_operators_are_measured_and_large_ones_estimated():
    example = mlp(batch=8, width=8)
    step = capture_step(example.model, example.inputs)
    found = measured_times(step.graph, step.module)
    assert found.device == "cpu" and found.notes == () and found.digest == step.graph.digest
    products = [node for node in found.nodes if node.op == "aten.mm.default"]
    assert all(node.time_s > 0 for node in products)
    alike = [node.time_s for node in products if node.phase == "forward" and node.shape == (8, 32)]
    assert len(alike) == 2 and len(set(alike)) == 1
    assert all(node.time_s == 0 for node in found.nodes if node.op in ("aten.t.default", "parameter"))
    large = measured_times(step.graph, step.module, most_bytes=1500)
    assert all(node.time_s > 0 for node in large.nodes if node.op == "aten.mm.default")
    assert "operators were too large or too many to measure" in large.notes[0]
