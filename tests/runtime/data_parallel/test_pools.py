"""What codecs remember, by parameter."""

from __future__ import annotations

import pytest
import torch

from wirewise.codec.gradients import make
from wirewise.errors import InputError
from wirewise.runtime.data_parallel import Compression, Pools, resize

SIZES = {"a": 3, "b": 2, "c": 4}


def filled(**kinds: dict[str, float]) -> Pools:
    pools = Pools(SIZES)
    for kind, values in kinds.items():
        for name, value in values.items():
            pools.group(kind, (name,)).fill_(value)
    return pools


def values(state: dict[str, torch.Tensor]) -> dict[str, float]:
    assert all((tensor == tensor[0]).all() for tensor in state.values())
    return {name: float(tensor[0]) for name, tensor in state.items()}


def test_contents_move_along_by_name():
    pools = filled(residual={"a": 1.0, "b": 2.0, "c": 3.0})
    assert pools.group("residual", ("c", "a")).tolist() == [3.0] * 4 + [1.0] * 3
    pools.group("residual", ("a", "b")).add_(10.0)
    assert values(pools.state_dict()["residual"]) == {"a": 11.0, "b": 12.0, "c": 3.0}
    assert pools.is_group("residual", ("a", "b")) and not pools.is_group("residual", ("c", "a"))


def test_a_group_keeps_its_buffer():
    pools = Pools(SIZES)
    first = pools.group("residual", ("a", "b"))
    pools.group("residual", ("a", "b"))
    assert pools.group("residual", ("a", "b")).data_ptr() == first.data_ptr()
    pools.group("residual", ("b", "a"))
    assert pools.group("residual", ("a", "b")).data_ptr() != first.data_ptr()


def test_only_codecs_with_feedback_have_memory():
    without = Pools(SIZES, Compression(feedback=False))
    assert Pools(SIZES).memory(make("efsign"), ("a",)) is not None
    assert Pools(SIZES).memory(make("signsgd"), ("a",)) is None
    assert without.memory(make("efsign"), ("a",)) is None
    assert without.memory(make("signum"), ("a",)) is not None


def test_a_failed_step_leaves_no_trace():
    pools = filled(residual={"a": 1.0})
    pools.save(("a", "b"))
    pools.group("residual", ("b", "a")).add_(5.0)
    assert pools.take("residual", ("a",)) is not None
    pools.end_step(failed=True)
    assert values(pools.state_dict()["residual"]) == {"a": 1.0, "b": 0.0}
    assert pools.step == 1


def test_another_scale_of_the_loss_is_that_of_what_waits():
    pools = filled(residual={"a": 2.0, "b": 4.0}, owner={"a": 6.0}, factor={"c": 1.0})
    pools.group("residual", ("a", "b"))
    pools.rescale(0.5)
    state = pools.state_dict()
    assert values(state["residual"]) == {"a": 1.0, "b": 2.0}
    assert values(state["owner"]) == {"a": 3.0} and values(state["factor"]) == {"c": 1.0}


def test_a_state_comes_back_as_it_was():
    pools = filled(residual={"a": 1.0}, owner={"c": 2.0}, momentum={"b": 3.0})
    pools.end_step()
    state = pools.state_dict()
    other = Pools({})
    other.load_state_dict(state)
    assert other.step == 1 and other.sizes == SIZES
    for kind in ("residual", "owner", "momentum"):
        assert values(other.state_dict()[kind]) == values(state[kind])


def test_states_of_another_model_or_world_are_refused():
    pools = Pools(SIZES)
    pools.world_size = 2
    state = Pools({**SIZES, "a": 5}).state_dict()
    with pytest.raises(InputError, match=r"has 5 elements for 'a', the model 3; 1 parameters differ"):
        pools.load_state_dict(state)
    with pytest.raises(InputError, match=r"one of 4 ranks, there are 2.*resize"):
        pools.load_state_dict({**pools.state_dict(), "world_size": 4})
    with pytest.raises(InputError, match="no 'owner'"):
        pools.load_state_dict({key: value for key, value in pools.state_dict().items() if key != "owner"})
    with pytest.raises(InputError, match="'a' has 7 elements, the pool 3"):
        pools.add({"a": 7})


def test_a_new_world_takes_the_mean_of_all_that_waits():
    states = [
        filled(residual={"a": 1.0 + rank}, owner={"c": 8.0} if rank == 3 else {}, momentum={"b": 2.0})
        for rank in range(4)
    ]
    for pools in states:
        pools.world_size = 4
    state = resize([pools.state_dict() for pools in states], 2)
    assert values(state["residual"]) == {"a": 2.5, "c": 2.0}
    assert values(state["momentum"]) == {"b": 2.0} and state["owner"] == {} and state["world_size"] == 2
    with pytest.raises(InputError, match="3 states; expected one of each of 4 ranks"):
        resize([pools.state_dict() for pools in states[:3]], 2)
    states[0].end_step()
    with pytest.raises(InputError, match=r"of steps \[0, 1\]"):
        resize([pools.state_dict() for pools in states], 2)
