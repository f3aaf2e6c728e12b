"""The exchange of halo rows: overlap, the way of gradients, and what is sent."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.full_graph.training import CONVOLUTIONS, small_graph, split, train, worst
from wirewise.runtime import full_graph as fg


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_overlap_changes_nothing(convolution: str) -> None:
    parts = split(small_graph(directed=True), 4)
    plain = train(parts, "fp32", convolution=convolution, dtype=torch.float64)
    overlapped = train(parts, "adaqp-p", convolution=convolution, dtype=torch.float64)
    assert worst([overlapped.logits], [plain.logits]) <= 1e-12
    assert worst(overlapped.gradients, plain.gradients) <= 1e-12


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_pulled_gradients_equal_pushed_ones_on_undirected_graphs(convolution: str) -> None:
    parts = split(small_graph(), 3)
    push = train(parts, "fp32", convolution=convolution, dtype=torch.float64)
    pull = train(
        parts, fg.ExchangeMode(name="pull", backward="pull"), convolution=convolution, dtype=torch.float64
    )
    # The weights of reversed edges are computed from degrees in float32.
    assert worst(pull.gradients, push.gradients) <= 1e-6


def test_first_layer_sends_nothing_and_last_layer_sends_classes() -> None:
    parts = split(small_graph(), 3)
    run = train(parts, "fp32", hidden=16)
    halo = sum(p.num_halo for p in parts)
    assert set(run.records[0].bits) == {"forward1", "forward2", "backward1", "backward2"}
    # Width 16 for layer 1, and 4 classes, not 16 hidden values, for layer 2; forward and backward.
    assert run.records[0].bytes_sent == 2 * halo * (16 + 4) * 4
