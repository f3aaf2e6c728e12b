"""Full-graph training on a GPU equals the CPU's; messages of one card's ranks are staged for gloo."""

from __future__ import annotations

import pytest

from tests.runtime.full_graph.training import small_graph, split, train, worst

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", ["fp32", "adaqp-p", "uniform-8", "uniform-4", "adaqp", "pipegcn"])
@pytest.mark.parametrize("convolution", ["gcn", "sage"])
def test_device_equals_cpu(convolution: str, mode: str) -> None:
    parts = split(small_graph(), 2)
    cpu = train(parts, mode, epochs=2, convolution=convolution)
    gpu = train(parts, mode, epochs=2, convolution=convolution, device="cuda")
    assert gpu.losses == pytest.approx(cpu.losses, rel=1e-4)
    assert worst([gpu.logits], [cpu.logits]) <= 1e-3
