"""Random regions of captured steps, and their kernels at many sizes."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.profile import regions
from wirewise.profile.regions import PRIME, Kernel, random_region, resize_batch, seconds_alone, seconds_of
from wirewise.runtime.data_parallel.capture import Capture, capture
from wirewise.trace import FusionGraph, Operator


def captured(rows: int = PRIME) -> tuple[Capture, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Tanh())
    batch = torch.randn(rows, 6)
    return capture(model, lambda m, b: m(b).reshape(-1, 3).square().mean(0).sum(), batch), model, batch


def reached(graph: FusionGraph, start: set[int]) -> set[int]:
    """All operators that read those, directly or not; operators are in topological order."""
    found = set(start)
    for number, one in enumerate(graph.operators):
        if found & set(one.inputs):
            found.add(number)
    return found


def test_picked_regions_are_legal():
    graph = captured()[0].operators
    sizes = set()
    for seed in range(200):
        operators, outputs = random_region(graph, Random(seed), 8)
        inside = set(operators)
        sizes.add(len(inside))
        assert operators and outputs and set(outputs) <= inside and list(operators) == sorted(inside)
        categories = [graph.operators[i].category for i in operators]
        assert "opaque" not in categories and categories.count("matmul") <= 1
        for i in operators:
            if graph.operators[i].category == "matmul":
                assert not inside & set(graph.operators[i].inputs)
        # Nothing that reads the region's results may lead back into it.
        readers = {
            j for j, one in enumerate(graph.operators) if j not in inside and set(one.inputs) & set(outputs)
        }
        assert not reached(graph, readers) & inside
    assert {1, 2, 4, 6} <= sizes and max(sizes) <= 8


def test_a_provider_on_a_path_through_the_outside_is_copied():
    one = {"category": "pointwise", "kind": "aten.mul.Tensor", "output_bytes": 4}
    graph = FusionGraph(
        operators=(
            Operator(name="a", **one),
            Operator(name="random", **one | {"category": "opaque"}, inputs=(0,)),
            Operator(name="c", **one, inputs=(0, 1), gradient="w"),
        )
    )
    found = {random_region(graph, Random(seed), 3) for seed in range(20)}
    assert ((0, 2), (2,)) in found and ((0, 2), (0, 2)) not in found


def test_a_graph_without_work_is_refused():
    view = Operator(name="v", kind="aten.view.default", category="view", output_bytes=4, gradient="w")
    with pytest.raises(InputError, match="none of 1 operators can be fused"):
        random_region(FusionGraph(operators=(view,)), Random(0), 2)


@pytest.mark.parametrize("rows", [5, 64])
def test_a_resized_step_is_the_step_of_the_other_size(rows):
    small, model, batch = captured(rows)
    expected = small.module(*small.inputs(model, batch))
    found = resize_batch(captured()[0].module, rows)(*small.inputs(model, batch))
    # The means' divisors grow with the batch too.
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)


def test_every_node_has_seconds_of_its_own():
    found, model, batch = captured()
    times = seconds_alone(found.module, found.inputs(model, batch), repeats=1)
    assert {one.name for one in found.operators.operators} <= times.keys()
    assert all(0 < one < 1 for one in times.values())


def test_seconds_of_a_kernel_are_those_of_its_work():
    small, large = (Kernel(torch.sort, (torch.rand(n),)) for n in (100, 1_000_000))
    few, many = seconds_of([small, large], repeats=1)
    assert 0 < 100 * few < many


def test_loops_that_shared_the_core_are_tried_again(monkeypatch):
    calls, alone = [], iter([True, False, False, True, True, True, True])
    monkeypatch.setattr(regions, "is_undisturbed", lambda: next(alone))
    monkeypatch.setattr(regions, "_loops", lambda kernel: 1)
    assert seconds_of([Kernel(calls.append, (None,))], repeats=2)[0] > 0
    # The first loop was disturbed at its end, the second waited; a call that is not timed leads each.
    assert len(calls) == 2 * 3 and next(alone, None) is None


def test_waiting_for_the_core_ends(monkeypatch):
    calls = []
    monkeypatch.setattr(regions, "is_undisturbed", lambda: False)
    assert seconds_of([Kernel(calls.append, (None,))], repeats=2, patience_s=0.01)[0] > 0
    assert calls


_COMPILED = """
import torch
from random import Random
from wirewise.profile import regions
from wirewise.profile.regions import *
from torch.fx.experimental.proxy_tensor import make_fx
torch._inductor.config.compile_threads = 1
regions._MOST_KERNELS = 1
module = make_fx(lambda x, y: ((x * y).tanh().reshape(2 * PRIME, 4).sum(0), x - y), tracing_mode="fake")(
    torch.rand(PRIME, 8), torch.rand(8))
calls = [(size, [torch.rand(size, 8), torch.rand(8)]) for size in (7, 20, 301)]
kernels = []
for size, (x, y), kernel in compile_dynamic(module, iter(calls)):
    total, less = kernel.function(*kernel.inputs)
    torch.testing.assert_close(total, (x * y).tanh().reshape(2 * size, 4).sum(0))
    torch.testing.assert_close(less, x - y)
    kernels.append(kernel)
assert len(kernels) == 3 and len({id(k.function) for k in kernels}) == 1
print("same kernel")
"""


@pytest.mark.slow
def test_one_kernel_serves_all_sizes():
    """Compile in a process of its own: compilers start others and set variables."""
    done = subprocess.run([sys.executable, "-c", _COMPILED], capture_output=True, text=True, timeout=110)
    assert done.stdout == "same kernel\n", done.stderr
