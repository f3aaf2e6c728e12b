"""Residuals outlive checkpoints, orders of parameters and numbers of ranks."""

import pytest
import torch

from tests.codec.gradients.groups import (
    TENSORS,
    normal,
)
from wirewise.codec.gradients import Residuals, resize
from wirewise.errors import InputError


def test_residuals_outlive_checkpoints_and_orders():
    pool = Residuals(TENSORS)
    pool.flat.copy_(normal(pool.flat.numel()))
    state = pool.state_dict()
    other = Residuals(dict(reversed(TENSORS.items())))
    other.load_state_dict(state)
    for name in TENSORS:
        assert torch.equal(other.group([name]), pool.group([name]))
    pool.flat.zero_()
    assert state["head.weight"].any()
    with pytest.raises(InputError, match=r"head\.bias"):
        pool.load_state_dict({**state, "head.bias": torch.zeros(3)})
    for names in (["head.weight", "mid.weight"], ["head.bias", "head.weight"], [], ["tail"]):
        with pytest.raises(InputError, match="expected"):
            pool.group(names)


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (3, 3)])
def test_a_new_world_owes_what_the_old_one_owed(old, new):
    states = [{"w": normal(50, r)} for r in range(old)]
    mean = torch.stack([s["w"] for s in states]).mean(dim=0)
    torch.testing.assert_close(resize(states, new)["w"], mean)
    torch.testing.assert_close(new * resize(states, new, reduction="sum")["w"], old * mean)
    with pytest.raises(InputError, match="expected"):
        resize(states, 0)
    with pytest.raises(InputError, match="one model"):
        resize([*states, {"v": torch.zeros(50)}], new)
