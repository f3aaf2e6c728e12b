"""Trainings that stop at a step and go on with other numbers of ranks: states, torn ones, and what is noted."""

from __future__ import annotations

import pytest
import torch

from wirewise.errors import InputError
from wirewise.runtime.jobs.training import PROGRESS, Progress, ProgressReader, SharedStates


def written(tmp_path, *steps):
    states = SharedStates(tmp_path, ["b", "a"])
    for step in steps:
        states.write(step, {"a": {"x": torch.tensor([step])}})
        states.write(step, {"b": {"y": step}})
    return states


def test_the_newest_state_with_all_parts_is_taken(tmp_path):
    states = written(tmp_path, 10, 20)
    states.write(30, {"a": {}})
    assert states.newest() == (20, []) and states.read(20)["b"]["y"] == 20
    assert SharedStates(tmp_path / "new", ["a"]).newest() == (0, [])


@pytest.mark.parametrize("cut", [0, 5, 60, -1])
def test_a_torn_state_is_said_and_the_one_before_it_taken(tmp_path, cut):
    states = written(tmp_path, 10, 20)
    path = tmp_path / "step-20.b.state"
    path.write_bytes(path.read_bytes()[:cut])
    step, wrong = states.newest()
    assert step == 10 and len(wrong) == 1 and "step-20.b.state" in wrong[0]
    with pytest.raises(InputError, match=r"step-20\.b\.state"):
        states.read(20)


def test_two_states_stay_and_those_of_a_lost_past_go(tmp_path):
    states = written(tmp_path, 10, 20, 30, 40)
    states.prune(after=30)
    assert states.steps() == [20, 30]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step}.{part}.state" for step in (20, 30) for part in "ab"
    ]


def test_progress_is_read_once_and_only_whole_lines(tmp_path):
    reader = ProgressReader(tmp_path)
    assert reader.read() == ()
    path = tmp_path / PROGRESS
    path.write_text('{"step":1,"at_s":2.5}\n{"step":2,')
    assert reader.read() == (Progress(1, 2.5),)
    with path.open("a") as file:
        file.write('"at_s":3,"event":"done"}\nnonsense\n')
    assert reader.read() == (Progress(2, 3.0, "done"),) and reader.read() == ()
