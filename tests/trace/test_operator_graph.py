"""Graphs of operators of a whole step: what holds in them, files, and what is refused by the place."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import InputError
from wirewise.trace import (
    OperatorGraph,
    OperatorNode,
    RepeatedBlocks,
    read_job,
    read_operator_graph,
    write_operator_graph,
)

X = OperatorNode(name="x", op="input", shape=(4, 8), source="0")
W = OperatorNode(name="w", op="parameter", shape=(8, 2), source="layer.weight", dtype="bfloat16")
MM = OperatorNode(
    name="mm", op="aten.mm.default", inputs=(0, 1), roles=("self", "mat2"), shape=(4, 2), flops=128.0, module="layer"
)  # fmt: skip
SUM = OperatorNode(
    name="sum", op="aten.sum.default", inputs=(2,), roles=("self",), arguments={"dtype": None}, flops=8.0
)
BACK = OperatorNode(
    name="back", op="aten.mm.default", inputs=(0, 2), roles=("self", "mat2"), shape=(8, 2), phase="backward"
)
END = OperatorNode(name="output", op="output", inputs=(3, 4), roles=("loss", "gradient"))
GOOD = OperatorGraph(nodes=(X, W, MM, SUM, BACK, END), loss=3, gradients={"layer.weight": 4})


def test_a_file_reads_back_equal_and_tells_its_grain(tmp_path):
    write_operator_graph(GOOD, tmp_path / "graph.json")
    assert read_operator_graph(tmp_path / "graph.json") == GOOD == read_job([tmp_path / "graph.json"])


def test_users_sizes_and_sums():
    assert GOOD.users == ((2, 4), (2,), (3, 4), (5,), (5,), ())
    assert GOOD.numbers["sum"] == 3 and GOOD.flops == 136.0
    assert (W.output_bytes, X.output_bytes, SUM.output_bytes) == (32, 128, 4)
    assert GOOD.parameter_bytes == 32
    parted = OperatorNode(name="split", op="aten.split.Tensor", shape=(4, 2), parts=((4, 2), (4, 1)))
    assert parted.elements == 12 and parted.computes and not X.computes


def test_the_digest_is_of_what_is_computed():
    nodes = list(GOOD.nodes)
    nodes[2] = msgspec.structs.replace(MM, time_s=1.0)
    assert msgspec.structs.replace(GOOD, nodes=tuple(nodes)).digest == GOOD.digest
    nodes[3] = msgspec.structs.replace(SUM, arguments={"dtype": "float32"})
    assert msgspec.structs.replace(GOOD, nodes=tuple(nodes)).digest != GOOD.digest


@pytest.mark.parametrize(
    ("number", "changes", "said"),
    [
        (2, {"inputs": (0, 5)}, r"inputs are \[0, 5\] - at|\$\.nodes\[2\]"),
        (2, {"name": "x"}, "stands twice"),
        (2, {"roles": ()}, "0 roles for 2 inputs"),
        (2, {"shape": (-1,)}, "sizes of at least 0"),
        (2, {"time_s": float("nan")}, "time_s is nan"),
        (2, {"dtype": "int3"}, "dtype is 'int3'"),
        (5, {"op": "aten.add.Tensor"}, "the last of the nodes is no output"),
        (3, {"op": "output"}, "a node before the last is an output"),
        (4, {"shape": (2, 8)}, "not of the shape of a parameter"),
    ],
)
def test_a_faulty_node_is_refused_by_its_place(number, changes, said):
    nodes = list(GOOD.nodes)
    nodes[number] = msgspec.structs.replace(nodes[number], **changes)
    with pytest.raises(InputError, match=said):
        msgspec.structs.replace(GOOD, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": 5}, r"got node 5 - at `\$.loss`"),
        ({"gradients": {}}, "no parameter has a gradient"),
        ({"gradients": {"other": 4}}, "not of the shape of a parameter"),
        ({"repeats": (RepeatedBlocks(prefixes=("a",), nodes=((2,),)),)}, "expected as many of each"),
        ({"repeats": (RepeatedBlocks(prefixes=("a", "b"), nodes=((2,), (2,))),)}, "stands in two blocks"),
        (
            {"repeats": (RepeatedBlocks(prefixes=("a", "b"), nodes=((2,), (3,))),)},
            "'sum' is not what 'mm' is",
        ),
    ],
)
def test_faulty_ends_and_repeats_are_refused(changes, said):
    with pytest.raises(InputError, match=said):
        msgspec.structs.replace(GOOD, **changes)
