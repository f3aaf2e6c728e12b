"""The state of a rank: all of it travels, bit by bit, from several sources, and a training resumes from it alike."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR, SequentialLR, StepLR

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import made as made_model
from wirewise.errors import InputError, PeerError
from wirewise.runtime.data_parallel import Pools
from wirewise.runtime.recovery import Lamb, TrainingState, copy_state
from wirewise.runtime.recovery import state as of_state
from wirewise.runtime.trees import digest_of, pack, unpack

OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "lamb": lambda p: Lamb(p, lr=0.01),
}


class Position:
    """Where a rank stands in its data."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = state["at"]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, 3), nn.Linear(3, 3))


def training(rank: int = 0, steps: int = 0, optimizer: str = "adamw") -> tuple[TrainingState, Position]:
    """A small training after some steps; BatchNorm and position are another on every rank, the rest is alike."""
    model = made_model(network, 3)
    model[4].requires_grad_(False)  # has no state in the optimizer
    made, position = OPTIMIZERS[optimizer](model.parameters()), Position()
    schedule = StepLR(made, 2, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = TrainingState(model, made, schedulers=[schedule], scaler=scaler, own={"position": position})
    for number in range(steps):
        train_step(state, position, rank, number)
    return state, position


def train_step(state: TrainingState, position: Position, rank: int, number: int) -> None:
    (optimizer,), (schedule,) = state.optimizers, state.schedulers
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * number + rank))
    optimizer.zero_grad()
    state.model(x).square().mean().backward()
    for name, parameter in state.model.named_parameters():
        if parameter.grad is not None:
            # What the mean over the ranks would be.
            key = torch.Generator().manual_seed(number + len(name))
            parameter.grad = torch.randn(parameter.shape, generator=key)
    optimizer.step()
    schedule.step()
    position.at += 8 + rank


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fresh_rank_goes_on_from_several_sources(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tensors are cut, and pieces go round.
    monkeypatch.setattr(of_state, "_PIECE_BYTES", 300)
    monkeypatch.setattr(of_state, "_LEAST_PIECE_BYTES", 1)

    def body(rank: int, group: Any, store: Any) -> tuple[str, str, float]:
        state, position = training(rank, 0 if rank == 2 else 5, optimizer)
        copy_state(state, group, [0, 3, 1], [2], 20.0, fresh=[2])
        copied = state.digest()
        if rank == 2:
            assert position.at == 40  # that of rank 0 stands in
            position.at = 5 * (8 + rank)
        train_step(state, position, rank, 5)
        return copied, state.digest(), state.optimizers[0].param_groups[0]["lr"]

    found = run_ranks_as_threads(4, body)
    assert len(set(found)) == 1
    expected, position = training(2, 6, optimizer)
    assert found[2][1] == expected.digest() and position.at == 60


def test_own_parts_stay_on_ranks_that_live_on() -> None:
    def body(rank: int, group: Any, store: Any) -> tuple[str, int, torch.Tensor]:
        state, position = training(rank, 5 if rank == 0 else 3)
        mean = state.model[1].running_mean.clone()
        if rank < 2:
            copy_state(state, group, [0], [1], 20.0)
        return state.digest(), position.at, state.model[1].running_mean - mean

    (first, second, third) = run_ranks_as_threads(3, body)
    assert first[0] == second[0] != third[0]
    assert second[1] == 3 * 9 and not second[2].any()


def test_both_parts_together_continue_bit_by_bit() -> None:
    state, position = training(1, 4)
    frame, tensors = pack(state.state_dict())
    saved = [tensor.clone() for tensor in tensors]
    random = torch.rand(3)
    train_step(state, position, 1, 4)
    other, its = training(1)
    other.load_state_dict(
        unpack(frame, lambda buffers: [b.copy_(s) for b, s in zip(buffers, saved, strict=True)])
    )
    assert torch.equal(torch.rand(3), random)
    train_step(other, its, 1, 4)
    assert other.digest() == state.digest() and digest_of(other.own()["buffers"]) == digest_of(
        state.own()["buffers"]
    )
    assert its.at == position.at


@pytest.mark.parametrize(
    "make",
    [
        lambda o: MultiStepLR(o, [2, 2, 4]),
        lambda o: OneCycleLR(o, 0.1, total_steps=20),
        lambda o: SequentialLR(o, [StepLR(o, 2), StepLR(o, 1)], [3]),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.9**t),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    ],
    ids=["milestones", "one-cycle", "sequential", "lambda", "restarts"],
)
def test_schedules_of_torch_travel(make) -> None:
    def made(steps: int) -> TrainingState:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = TrainingState(model, optimizer, schedulers=[make(optimizer)])
        for _ in range(steps):
            optimizer.step()
            state.schedulers[0].step()
        return state

    first, second = made(3), made(0)
    frame, tensors = pack(first.shared())
    second.load_shared(unpack(frame, lambda own: [b.copy_(t) for b, t in zip(own, tensors, strict=True)]))
    assert second.digest() == first.digest()
    for state in (first, second):
        state.optimizers[0].step()
        state.schedulers[0].step()
    assert second.digest() == first.digest()


def test_averages_of_another_type_than_the_parameter_stay_so() -> None:
    """Averages would be rounded by torch's load_state_dict."""
    model = nn.Linear(2, 2).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["average"] = torch.full((2, 2), 1 / 3)
    state = TrainingState(model, optimizer)
    tree = {"heavy": state.parameter_state(), "light": state.light()}
    other_model = nn.Linear(2, 2).to(torch.bfloat16)
    other = TrainingState(other_model, torch.optim.SGD(other_model.parameters(), lr=0.2))
    other.load_shared(tree)
    assert other.digest() == state.digest()


def test_a_digest_sees_one_bit() -> None:
    state, _ = training(0, 2)
    digest = state.digest()
    with torch.no_grad():
        bits = state.model[0].weight.view(torch.int32)
        bits[3, 3] ^= 1
    changed = state.digest()
    bits[3, 3] ^= 1
    assert changed != digest == state.digest() and len(digest) == 16
    state.optimizers[0].param_groups[0]["lr"] *= 1.0000001
    assert state.digest() != digest


def test_pools_of_codecs_are_objects_like_others() -> None:
    def made() -> tuple[TrainingState, Pools]:
        model = nn.Linear(2, 2)
        pools = Pools({name: p.numel() for name, p in model.named_parameters()})
        return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1), own={"pools": pools}), pools

    (state, pools), (other, its) = made(), made()
    pools.group("residual", ("weight", "bias")).copy_(torch.arange(6.0))
    pools.step = 7
    other.load_own(state.own())
    assert its.step == 7 and digest_of(its.state_dict()) == digest_of(pools.state_dict())


def test_a_state_that_does_not_fit_is_refused_by_name() -> None:
    state, _ = training(0, 1)
    before = state.digest()
    with pytest.raises(
        InputError, match=r"parameter '0.weight' is float32 \[5, 6\] in the state and .* \[40, 6\]"
    ):
        state.load_parameter_state({**state.parameter_state(), "parameters": {"0.weight": torch.zeros(5, 6)}})
    with pytest.raises(InputError, match=r"objects \['sampler'\]; expected \['position'\]"):
        state.load_own({**state.own(), "named": {"sampler": {}}})
    with pytest.raises(InputError, match="does not fit this training: KeyError"):
        state.load_state_dict({"shared": {}})
    assert state.digest() == before
    with pytest.raises(InputError, match="a state holds a set"):
        pack({"a": {1}})
    with pytest.raises(InputError, match="it is damaged"):
        unpack(b"PK nothing", lambda _: None)
    with pytest.raises(InputError, match="SGD has a parameter that the model has not"):
        TrainingState(nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))


def test_sharded_parameters_are_refused_by_name() -> None:
    class Shard(nn.Parameter):
        def to_local(self) -> torch.Tensor:
            return self.data

    model = nn.Linear(2, 2)
    model.weight = Shard(torch.ones(2, 2))
    with pytest.raises(InputError, match="parameter 'weight' is a Shard, sharded over ranks"):
        TrainingState(model, torch.optim.SGD([model.bias], lr=0.1))


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def test_code_in_a_frame_does_not_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    torch.save({"a": Harmful()}, file)
    with pytest.raises(InputError, match="would run code"):
        unpack(file.getvalue(), lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sources", "targets", "fresh"), [([], [1], []), ([0], [0], []), ([0, 0], [1], []), ([0], [1], [2])]
)
def test_senseless_sources_and_targets_are_refused(sources, targets, fresh) -> None:
    with pytest.raises(InputError, match="expected"):
        copy_state(training()[0], None, sources, targets, 1.0, fresh=fresh)


def test_a_silent_source_is_named_in_time() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        state, _ = training(rank, 1)
        if rank:
            with pytest.raises(PeerError, match="size of the state"):
                copy_state(state, group, [0], [1], 0.3)

    run_ranks_as_threads(2, body)


class Counting(torch.optim.SGD):
    """An optimizer with state beside its parameters: an entry of its own and an attribute."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.count, self.state["steps"] = 0, 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        self.state["steps"] += 1
        return super().step(closure)


class Scaled(nn.Linear):
    """A module with extra state, and with an attribute that training changes."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale, self.passes = 1.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale, self.passes = self.scale * 1.5, self.passes + 1
        return super().forward(x) * self.scale

    def get_extra_state(self) -> Any:
        return {"scale": self.scale}

    def set_extra_state(self, state: Any) -> None:
        self.scale = state["scale"]


def test_state_beside_parameters_and_buffers_travels() -> None:
    def made() -> tuple[TrainingState, Scaled]:
        torch.manual_seed(0)
        model = Scaled()
        return TrainingState(model, Counting(model.parameters())), model

    (first, model), (second, copy) = made(), made()
    for _ in range(2):
        first.optimizers[0].zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        first.optimizers[0].step()
    model.bias.requires_grad_(False)
    model.eval()
    first.attributes.detect_changes()
    frame, tensors = pack(first.shared())
    second.load_shared(unpack(frame, lambda own: [b.copy_(t) for b, t in zip(own, tensors, strict=True)]))
    assert (copy.scale, copy.passes, copy.training) == (2.25, 2, False)
    optimizer: Any = second.optimizers[0]
    assert optimizer.count == optimizer.state["steps"] == 2 and not copy.bias.requires_grad
    assert second.digest() == first.digest()
    optimizer.state["steps"] = 3
    assert second.digest() != first.digest()
