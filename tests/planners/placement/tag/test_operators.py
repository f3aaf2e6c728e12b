"""Modules of a captured step: runs of operators, their backward passes, factors and what goes from one to the next."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import InputError
from wirewise.planners import PLANNERS
from wirewise.planners.placement.tag import modules_of
from wirewise.topology import random_unequal
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode


def node(name, op, shape, *inputs, **more):
    roles = tuple("self" for _ in inputs)
    return OperatorNode(name=name, op=op, shape=shape, inputs=inputs, roles=roles, **more)


def residual():
    """One dense layer with a skip: y = (x W) + x, loss = sum, 4 rows of 8."""
    mm, back = "aten.mm.default", {"phase": "backward"}
    return OperatorGraph(
        nodes=(
            node("x", "input", (4, 8), source="0"),
            node("w", "parameter", (8, 8), source="dense.weight", module="dense"),
            node("head", "aten.mul.Tensor", (4, 8), 0, time_s=1.0),
            node("mm", mm, (4, 8), 2, 1, module="dense", time_s=4.0),
            node("add", "aten.add.Tensor", (4, 8), 3, 2, time_s=3.0),
            node("sum", "aten.sum.default", (), 4, time_s=0.0),
            node("one", "aten.expand.default", (4, 8), 5, time_s=4.0, **back),
            node("gw", mm, (8, 8), 2, 6, module="dense", time_s=5.0, **back),
            node("t", "aten.t.default", (8, 8), 7, module="dense", **back),
            node("gx", mm, (4, 8), 6, 1, module="dense", time_s=4.0, **back),
            node("end", "output", (), 8, 9),
        ),
        loss=5,
        gradients={"dense.weight": 8},
        device="by hand",
    )


def test_runs_of_a_residual_block():
    found = modules_of(residual())
    assert [m.name for m in found.modules] == ["model#0", "dense", "model#2"]
    assert set(found.edges) == {("model#0", "dense"), ("model#0", "model#2"), ("dense", "model#2")}
    first, dense, last = found.modules
    assert found.sizes == (4,)
    # The model's own backward operator takes 4 s, of which its runs have a quarter and three.
    assert (first.forward_s, first.backward_s) == ((1.0,), (1.0,))
    assert (last.forward_s, last.backward_s) == ((3.0,), (3.0,))
    assert (dense.forward_s, dense.backward_s, dense.weight_gradient_s) == ((4.0,), (9.0,), (5.0,))
    assert (dense.parameter_bytes, dense.factored_bytes, dense.factor_bytes) == (256.0, 256.0, 64.0)
    assert (first.output_bytes, first.saved_bytes) == (32.0, 32.0)


def test_a_captured_step_is_planned_for():
    plan = PLANNERS["deployment"]["tag"](
        residual(), random_unequal(2, hosts=2), batch=16, playouts=5, simulations=40
    )
    assert [op for group in plan.groups for op in group.ops] == ["model#0", "dense", "model#2"]


def test_what_says_too_little_is_refused():
    graph = residual()
    without = msgspec.structs.replace(
        graph, nodes=tuple(msgspec.structs.replace(n, time_s=0.0) for n in graph.nodes)
    )
    with pytest.raises(InputError, match="no times"):
        modules_of(without)
    scalar = msgspec.structs.replace(
        graph, nodes=(msgspec.structs.replace(graph.nodes[0], shape=()), *graph.nodes[1:])
    )
    with pytest.raises(InputError, match="say how many rows"):
        modules_of(scalar)
