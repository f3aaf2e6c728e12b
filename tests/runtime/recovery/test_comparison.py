"""Replicas that differ are named, part by part; those that do not are compared rarely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import PeerError
from wirewise.runtime.recovery.comparison import ReplicaComparison, ReplicaDifference
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.transport import transport_of


class Count:
    def __init__(self) -> None:
        self.n = 0

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: Any) -> None:
        self.n = state["n"]


class Counting(torch.optim.SGD):
    count = 0


class Scaled(nn.BatchNorm1d):
    scale = 1.0

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def made() -> tuple[TrainingState, Count]:
    model = nn.Sequential(nn.Linear(2, 2), Scaled(2))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    optimizer, count = Counting(model.parameters(), lr=0.1), Count()
    state = TrainingState(
        model, optimizer, schedulers=[StepLR(optimizer, 2)], shared={"count": count}, buffers="shared"
    )
    return state, count


def _weight(state: TrainingState, count: Count) -> None:
    with torch.no_grad():
        state.model[0].weight.view(torch.int32)[1, 1] ^= 1


def _entry(state: TrainingState, count: Count) -> None:
    state.optimizers[0].state["count"] = 3


def _attribute(state: TrainingState, count: Count) -> None:
    state.optimizers[0].count = 3
    state.attributes.detect_changes()


CHANGES: dict[str, Callable[[TrainingState, Count], Any]] = {
    r"parameter '0.weight' of step 4": _weight,
    r"buffer '1.running_mean'": lambda state, count: state.model[1].running_mean.add_(1),
    r"param_groups of optimizer 0 \(Counting\)": lambda state, count: (
        state.optimizers[0].param_groups[0].update(lr=1)
    ),
    r"state of optimizer 0 \(Counting\) beside parameters": _entry,
    r"attribute 'count' of optimizer 0 \(Counting\)": _attribute,
    r"scheduler 0 \(StepLR\)": lambda state, count: setattr(state.schedulers[0], "gamma", 0.7),
    r"objects\['count'\]": lambda state, count: setattr(count, "n", 5),
    r"extra state of '1'": lambda state, count: setattr(state.model[1], "scale", 2.0),
    r"frozen parameters": lambda state, count: state.model[0].bias.requires_grad_(False),
}


@pytest.mark.parametrize("told", CHANGES)
def test_the_first_difference_is_named_on_all_ranks(told: str) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        state, count = made()
        comparison = ReplicaComparison(state, every=1)
        comparison.run(3, transport_of(group, timeout_s=20.0))
        if rank == 2:
            CHANGES[told](state, count)
        with pytest.raises(ReplicaDifference, match=rf"{told}.* is another on processes \[2\] of 3"):
            comparison.run(4, transport_of(group, timeout_s=20.0))

    run_ranks_as_threads(3, body)


def test_shards_are_compared_with_their_replicas() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        state, _ = made()
        with torch.no_grad():
            state.model[0].weight.add_(rank % 2)
        comparison = ReplicaComparison(state, every=1)
        comparison.run(1, transport_of(group, timeout_s=20.0), width=2)
        if rank == 3:
            _weight(state, Count())
        with pytest.raises(PeerError, match=r"'0.weight' of step 2 is another on processes \[3\]"):
            comparison.run(2, transport_of(group, timeout_s=20.0), width=2)

    run_ranks_as_threads(4, body)


def test_comparisons_are_as_rare_on_all_ranks_as_the_slowest_needs() -> None:
    def body(rank: int, group: Any, store: Any) -> list[int]:
        state, _ = made()
        comparison, done = ReplicaComparison(state), list[int]()
        comparison._interval = lambda step_s: 40 + rank  # type: ignore[method-assign]
        for step in range(130):
            if comparison.due(step):
                done.append(step)
            comparison.run(step, transport_of(group, timeout_s=20.0))
        comparison.start(200)
        return [*done, comparison._next]

    assert run_ranks_as_threads(2, body) == [[1, 42, 83, 124, 201]] * 2


def test_the_interval_follows_from_what_a_comparison_takes() -> None:
    comparison = ReplicaComparison(made()[0])
    comparison._took_s = 0.01
    assert comparison._interval(1.0) == 4 and comparison._interval(0.1) == 34
    assert comparison._interval(1e-5) == 1000
    assert ReplicaComparison(made()[0], every=7)._interval(1.0) == 7
