"""How operators walk through memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from wirewise.profile.layouts import node_layout
from wirewise.trace.operators import MemoryLayout


def layout(function: Callable[..., Tensor], *inputs: Tensor) -> MemoryLayout:
    """Layout of the last operator of a function."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    *_, last = (node for node in graph.nodes if node.op == "call_function")
    return node_layout(last)


def test_values_side_by_side():
    assert layout(torch.add, torch.ones(5, 7), torch.ones(5, 7)) == MemoryLayout(inner=7)


def test_a_transposed_read_is_strided():
    x, y = torch.ones(5, 7), torch.ones(7, 5)
    assert layout(lambda x, y: x + y.t(), x, y).strided == 1
    # Both transposed: the sum is as they are, and walks along them.
    both = layout(lambda x, y: x.t() + y.t(), x, x)
    assert both.strided == 0 and both.inner == 7


def test_a_row_that_is_added_to_all_is_repeated():
    assert layout(torch.add, torch.ones(5, 7), torch.ones(7)) == MemoryLayout(inner=7, repeated=1)
    column = layout(torch.add, torch.ones(5, 7), torch.ones(5, 1))
    assert (column.repeated, column.strided) == (1, 0)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("dimension", "inner"), [(1, True), (0, False)])
def test_reductions_along_and_across_memory(keep, dimension, inner):
    x = torch.ones(5, 7)
    found = layout(lambda x: x.sum(dimension, keepdim=keep), x)
    assert found == MemoryLayout(inner=7, reduced=x.shape[dimension], reduces_inner=inner, repeated=0)
    assert layout(lambda x: x.t().sum(1 - dimension, keepdim=keep), x).reduces_inner == inner


def test_a_reduction_of_everything():
    assert layout(torch.sum, torch.ones(5, 7)) == MemoryLayout(inner=7, reduced=35, reduces_inner=True)


def test_widths_of_values():
    counted = layout(lambda x: (x > 0).sum(0), torch.ones(5, 7))
    assert (counted.least_bytes, counted.most_bytes) == (1, 8)
    assert layout(lambda x: x.to(torch.bfloat16), torch.ones(3)).least_bytes == 2
