"""The picture of a parallel plan: rows of modules, blocks that share rows, what travels, a step over time."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest

from wirewise.cost import Links
from wirewise.errors import PlanError
from wirewise.plans.parallel import Move, MoveStep, ParallelPlan
from wirewise.report.parallel_picture import module_rows, parallel_sections
from wirewise.topology import lab_hosts
from wirewise.trace import OperatorGraph, OperatorNode, RepeatedBlocks


def layered(layers: int) -> OperatorGraph:
    """Products of layers, `blocks.N`, forward and backward."""
    nodes = [OperatorNode(name="x", op="input", shape=(4, 8), source="0")]
    weights = {}
    for n in range(layers):
        weights[n] = len(nodes)
        nodes.append(
            OperatorNode(name=f"w{n}", op="parameter", shape=(8, 8), source=f"blocks.{n}.w", module=f"blocks.{n}")
        )  # fmt: skip

    def product(name: str, left: int, right: int, shape: tuple[int, ...], module: str, phase: str) -> int:
        nodes.append(
            OperatorNode(
                name=name, op="aten.mm.default", inputs=(left, right), roles=("self", "mat2"), shape=shape,
                module=module, phase=phase, time_s=1e-3,
            )
        )  # fmt: skip
        return len(nodes) - 1

    last, made = 0, []
    for n in range(layers):
        last = product(f"mm{n}", last, weights[n], (4, 8), f"blocks.{n}", "forward")
        made.append(last)
    loss = len(nodes)
    nodes.append(OperatorNode(name="loss", op="aten.sum.default", inputs=(last,), roles=("self",)))
    gradients = {}
    for n in reversed(range(layers)):
        gradients[f"blocks.{n}.w"] = product(f"g{n}", made[n], made[n], (8, 8), f"blocks.{n}", "backward")
    ends = (loss, *gradients.values())
    nodes.append(OperatorNode(name="output", op="output", inputs=ends, roles=("result",) * len(ends)))
    blocks = [(weights[n], made[n], gradients[f"blocks.{n}.w"]) for n in range(layers)]
    repeats = RepeatedBlocks(prefixes=tuple(f"blocks.{n}" for n in range(layers)), nodes=tuple(blocks))
    return OperatorGraph(nodes=tuple(nodes), loss=loss, gradients=gradients, repeats=(repeats,))


GRAPH = layered(4)


def data_parallel(graph: OperatorGraph, **changes) -> ParallelPlan:
    """The batch in parts, gradients summed over two ranks."""
    moves = tuple(
        Move(
            producer=number, consumers=(len(graph.nodes) - 1,), source=("P",), target=("R",), once=True,
            steps=(MoveStep(kind="all_reduce", mesh_dim=0, size_bytes=256, sent_bytes=256),),
        )
        for number in sorted(graph.gradients.values())
    )  # fmt: skip
    words = [
        ("R",) if node.op in ("parameter", "output") else ("P",) if node.name[0] in "gl" else ("S0",)
        for node in graph.nodes
    ]
    made = ParallelPlan(
        world_size=2, planner="hand", graph=graph.digest, mesh=(2,), mesh_names=("data",), ranks=((0, 1),),
        stage_of=(0,) * len(graph.nodes), placements=tuple(words), moves=moves, predicted_step_s=0.01,
        memory_bytes=(100, 200), why=("gradients are small",),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_blocks_that_are_treated_alike_share_a_row():
    first, last = module_rows(data_parallel(GRAPH), GRAPH)
    assert (first.name, first.module, first.stage) == ("blocks.0-3", "blocks.0", 0)
    assert (first.parameter, first.output) == (("R",), ("S0",))
    assert (first.forward, first.backward) == ((), (("all_reduce", 256),))
    assert last.name == "(model and loss)" and last.output == ("P",)


def test_stages_have_rows_of_their_own():
    stages = tuple(int(node.module in ("blocks.2", "blocks.3")) for node in GRAPH.nodes)
    plan = data_parallel(GRAPH, ranks=((0, 1), (2, 3)), world_size=4, stage_of=stages, memory_bytes=())
    rows = module_rows(plan, GRAPH)
    assert [(row.name, row.stage) for row in rows[:2]] == [("blocks.0-1", 0), ("blocks.2-3", 1)]
    page = "".join(parallel_sections(plan, GRAPH))
    assert ">stage 0<" in page and ">stage 1<" in page and "ranks 2, 3" in page


def test_the_page_tells_what_travels_and_a_step_over_time():
    page = "".join(parallel_sections(data_parallel(GRAPH), GRAPH, Links.of(lab_hosts(["1gbit"] * 2))))
    HTMLParser().feed(page)
    assert "all-reduce 256 B" in page and "<td>all-reduce</td><td>data</td>" in page
    assert "gradients are small" in page and "A step takes" in page and "communication" in page
    assert "200 B" in page and "of rank 1, which needs most" in page
    alone = "".join(parallel_sections(data_parallel(GRAPH), None))
    assert "does not lie beside the plan" in alone and "A step takes" not in alone


def test_a_graph_of_another_step_is_refused():
    with pytest.raises(PlanError, match="made for the graph"):
        list(parallel_sections(data_parallel(GRAPH), layered(3)))
