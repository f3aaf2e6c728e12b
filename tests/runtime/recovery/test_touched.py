"""Parameters that a script changes after the block, and the way back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.recovery.touched import TouchedParameters


def made() -> tuple[nn.Linear, TouchedParameters]:
    model = nn.Linear(2, 2)
    return model, TouchedParameters(lambda: dict(model.named_parameters()))


@pytest.mark.parametrize("counted", [True, False])
def test_a_parameter_that_each_step_changes_comes_back(counted: bool) -> None:
    model, touched = made()
    for last in (False, False, False, True):
        touched.keep()
        before = model.bias.detach().clone()
        with torch.no_grad():
            (model.bias if counted else model.bias.data).add_(1)
        if last:
            touched.restore()
            assert torch.equal(model.bias, before)
        touched.detect_changes()
        assert touched.names == {"bias"}


def test_a_first_change_is_refused_by_name_where_it_cannot_be_undone() -> None:
    model, touched = made()
    for _ in range(3):
        touched.keep()
        touched.detect_changes()
    touched.keep()
    with torch.no_grad():
        model.weight.clamp_(-0.1, 0.1)
    with pytest.raises(InputError, match="changed the parameter 'weight' after the block for the first time"):
        touched.restore()


def test_after_a_failure_all_are_kept() -> None:
    model, touched = made()
    for _ in range(3):
        touched.detect_changes()
    touched.keep(whole=True)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    touched.restore()
    assert torch.equal(model.weight, before) and not touched.names
