"""Operators of a captured step, measured one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.profile.operators import measure_operators
from wirewise.runtime.data_parallel.capture import Capture, capture


def made(width: int = 8) -> tuple[Capture, list[torch.Tensor]]:
    model = nn.Sequential(
        *(m for _ in range(2) for m in (nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.5)))
    )
    batch = torch.randn(4, width)
    found = capture(model, lambda m, b: m(b).square().mean(), batch)
    return found, found.inputs(model, batch)


def test_every_operator_has_a_time_and_equal_ones_have_the_same():
    found, inputs = made()
    state = torch.get_rng_state()
    measured = measure_operators(found.module, inputs, found.operators, passes=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(one.time_s > 0 for one in measured.operators)
    assert len({one.time_s for one in measured.operators if one.kind == "aten.tanh.default"}) == 1
    assert {one.layout.inner for one in measured.operators if one.kind == "aten.tanh.default"} == {8}
    assert [one.name for one in measured.operators] == [one.name for one in found.operators.operators]


def test_what_is_known_is_not_measured_again():
    found, inputs = made()
    known: dict = {}
    first = measure_operators(found.module, inputs, found.operators, passes=1, known_times=known)
    again = measure_operators(found.module, [], found.operators, passes=1, known_times=known)
    assert again == first
    other, inputs = made(width=16)
    assert measure_operators(other.module, inputs, other.operators, passes=1, known_times=known) != first


def test_another_graph_is_refused():
    found, inputs = made()
    other = capture(nn.Linear(3, 2), lambda m, b: m(b).exp().sum(), torch.randn(2, 3))
    with pytest.raises(InputError, match=r"has no operators .*tanh"):
        measure_operators(other.module, inputs, found.operators)
    with pytest.raises(InputError, match="got 0 passes"):
        measure_operators(found.module, inputs, found.operators, passes=0)
