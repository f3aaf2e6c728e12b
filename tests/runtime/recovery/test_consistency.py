"""Recovery from any point within an update to a whole step: forward, or back by each journal, bit by bit if stated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from tests.runtime.data_parallel.examples import made as made_model
from wirewise.errors import InputError
from wirewise.runtime.recovery import Lamb, Lion, TrainingState, Updates
from wirewise.runtime.trees import digest_of

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "lamb": lambda p: Lamb(p, lr=0.01),
    "lion": lambda p: Lion(p, lr=0.01, weight_decay=0.1),
}
EXACT = [
    *(("ping-pong", name) for name in OPTIMIZERS),
    *(("journal", name) for name in OPTIMIZERS if name != "amsgrad"),
]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 2))


def training(
    consistency: Any = "ping-pong", optimizer: str = "adamw", *, apart: bool = True, **options: Any
) -> Updates:
    """A training with dropout, a schedule and statistics of BatchNorm; `apart`: a bucket for each module."""
    model = made_model(network)
    torch.manual_seed(1)
    made = OPTIMIZERS[optimizer](model.parameters())
    state = TrainingState(model, made, schedulers=[StepLR(made, 2)])
    buckets = [list(model[number].parameters()) for number in (4, 1, 0)] if apart else None
    return Updates(state, buckets=buckets, consistency=consistency, **options)


class Broken(Exception):
    """What a collective raises when a peer is gone."""


def train_step(updates: Updates, breaks_at: int = 9) -> None:
    """A step in whose backward pass buckets are updated; reducing one of them may break."""

    def reduce(number: int, gradients: list[Tensor]) -> None:
        if number == breaks_at:
            gradients[0].fill_(float("nan"))  # whatever a broken all-reduce left
            raise Broken

    step = updates.committed_step
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
    updates.state.model.zero_grad()
    with updates.in_backward(reduce) if len(updates.versions) > 1 else nullcontext():
        updates.state.model(x).square().mean().backward()
    updates.step()


def whole(updates: Updates) -> str:
    return digest_of(updates.state.state_dict())


def undisturbed(steps: int, consistency: Any = "roll-forward", optimizer: str = "adamw") -> list[str]:
    """Digest of each step, of both parts."""
    updates = training(consistency, optimizer)
    found = [whole(updates)]
    for _ in range(steps):
        train_step(updates)
        found.append(whole(updates))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(("consistency", "optimizer"), EXACT)
@pytest.mark.parametrize("breaks_at", [0, 1, 2])
def test_a_step_that_breaks_is_taken_back_and_done_again(consistency, optimizer, breaks_at) -> None:
    expected = undisturbed(4, optimizer=optimizer)
    updates = training(consistency, optimizer)
    for step in range(4):
        with pytest.raises(Broken):
            train_step(updates, breaks_at)
        assert updates.versions == (step + 1,) * breaks_at + (step,) * (3 - breaks_at)
        assert updates.reduced == (True,) * breaks_at + (False,) * (3 - breaks_at)
        assert updates.can_restore == (breaks_at > 0 or step > 0) and updates.exact
        updates.restore_step(step)
        assert whole(updates) == expected[step] and updates.versions == (step,) * 3
        train_step(updates)
        assert whole(updates) == expected[step + 1] and updates.committed_step == step + 1


@pytest.mark.sweep
@pytest.mark.parametrize(("consistency", "optimizer"), [*EXACT, ("roll-forward", "amsgrad")])
def test_reduced_gradients_are_enough_to_finish(consistency, optimizer) -> None:
    expected = undisturbed(2, optimizer=optimizer)
    updates = training(consistency, optimizer)
    for step in range(2):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        updates.state.model.zero_grad()
        updates.state.model(x).square().mean().backward()
        for bucket in range(3):
            updates.mark_reduced(bucket)
        updates.update_bucket(1)
        assert updates.committed_step == step and updates.versions == (step, step + 1, step)
        updates.restore_step(step + 1)
        assert whole(updates) == expected[step + 1] and updates.committed_step == step + 1


@pytest.mark.sweep
@pytest.mark.parametrize(("consistency", "optimizer"), EXACT)
@pytest.mark.parametrize("apart", [True, False])
def test_the_last_committed_step_can_be_taken_back(consistency, optimizer, apart) -> None:
    expected = undisturbed(3, optimizer=optimizer)
    updates = training(consistency, optimizer, apart=apart)
    for step in range(3):
        train_step(updates)
        updates.restore_step(step)
        assert whole(updates) == expected[step] and updates.committed_step == step
        assert not updates.can_restore
        train_step(updates)
        assert whole(updates) == expected[step + 1]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "lamb", "lion"])
def test_undo_is_close(optimizer) -> None:
    updates = training("undo", optimizer)
    for step in range(3):
        train_step(updates)
        was = [p.detach().clone() for p in updates.state.model.parameters()]
        own = digest_of(updates.state.own())
        with pytest.raises(Broken):
            train_step(updates, 2)
        assert not updates.exact
        updates.restore_step(step + 1)
        for p, value in zip(updates.state.model.parameters(), was, strict=True):
            assert float((p.detach() - value).abs().max()) <= 5e-7
        assert digest_of(updates.state.own()) == own


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([("ping-pong", "amsgrad"), ("journal", "adamw"), ("ping-pong", "momentum")]),
    st.lists(st.sampled_from(["step", "back", "broken 0", "broken 1", "broken 2", "finish"]), max_size=14),
)
def test_any_order_of_faults_leaves_the_trajectory(kind, acts) -> None:
    """Each step has one state, whichever way a rank came to it."""
    updates = training(*kind)
    seen = {0: whole(updates)}
    for act in acts:
        step = updates.committed_step
        if act == "back":
            if not updates.can_restore:
                with pytest.raises(InputError, match=f"cannot come to step {step - 1} by itself"):
                    updates.restore_step(step - 1)
                continue
            updates.restore_step(step - 1)
        elif act.startswith("broken"):
            with pytest.raises(Broken):
                train_step(updates, int(act[-1]))
            updates.restore_step(step)
        else:
            train_step(updates)
        assert seen.setdefault(updates.committed_step, whole(updates)) == whole(updates)


class Stuck(StepLR):
    """A schedule that fails."""

    def step(self, *args: Any) -> None:
        if self.last_epoch > 0:
            raise Broken
        super().step(*args)


def test_the_committed_step_is_written_last() -> None:
    updates = training(apart=False)
    updates.state.schedulers = [Stuck(updates.state.optimizers[0], 2)]
    updates.adopt(0)
    train_step(updates)
    with pytest.raises(Broken):
        train_step(updates)
    assert updates.committed_step == 1 and updates.versions == (2,)


def test_an_update_that_fails_midway_is_known() -> None:
    for consistency, kept in (("ping-pong", True), ("undo", False), ("roll-forward", False)):
        updates = training(consistency, apart=False)
        train_step(updates)
        last = updates.state.model[4].bias
        updates.state.optimizers[0].state[last]["exp_avg"] = torch.zeros(7)
        broken = [p.detach().clone() for p in updates.state.model.parameters()]
        with pytest.raises(RuntimeError):
            train_step(updates)
        same = all(map(torch.equal, broken, updates.state.model.parameters()))
        assert same == kept and updates.committed_step == (1 if kept else -1)
        if not kept:
            with pytest.raises(InputError, match="copy the state of a rank"):
                updates.restore_step(1)
            with pytest.raises(InputError, match="expected reduced gradients"):
                updates.update_bucket(0)
            updates.adopt(7)
            assert updates.committed_step == 7 and updates.versions == (7,)


def test_a_copied_state_keeps_what_the_rank_alone_has() -> None:
    updates = training()
    train_step(updates)
    own = digest_of(updates.state.own())
    with pytest.raises(Broken):
        train_step(updates, 1)
    assert digest_of(updates.state.own()) != own
    updates.adopt(1)  # the shared part of step 1 would have been copied before
    assert digest_of(updates.state.own()) == own and not updates.begun


def scaled(inf: bool) -> tuple[Updates, nn.Parameter]:
    model = made_model(lambda: nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    updates = Updates(TrainingState(model, optimizer, scaler=scaler), consistency="undo", clip=0.5)
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    if inf:
        model.weight.grad[0, 0] = float("inf")
    return updates, model.weight


def test_a_scaler_unscales_before_the_clip_and_a_step_it_skips_is_not_undone() -> None:
    updates, weight = scaled(inf=True)
    before = weight.detach().clone()
    updates.step()
    assert updates.committed_step == 1 and torch.equal(weight, before)
    assert updates.state.scaler.get_scale() == 2.0
    updates.restore_step(0)
    assert torch.equal(weight, before) and updates.state.scaler.get_scale() == 4.0
    updates, weight = scaled(inf=False)
    updates.step()
    # Gradients are 1, of norm sqrt 6; they are clipped to 0.5.
    torch.testing.assert_close(weight.detach(), before - 0.1 * 0.5 / 6**0.5)
    updates.restore_step(0)
    torch.testing.assert_close(weight.detach(), before, atol=1e-7, rtol=0)


def test_nothing_is_finished_before_it_is_prepared() -> None:
    prepared: list[int] = []
    expected = undisturbed(2)

    def prepare(step: int) -> None:
        prepared.append(step)
        if len(prepared) == 2:
            raise Broken

    updates = training(apart=False, prepare=prepare)
    train_step(updates)
    with pytest.raises(Broken):
        train_step(updates)
    assert prepared == [1, 2] and updates.committed_step == 1 and not updates.begun
    assert updates.reduced == (False,)
    updates.restore_step(1)
    train_step(updates)
    assert whole(updates) == expected[2]


def test_memory_of_journals() -> None:
    bytes_of = {}
    for consistency in ("roll-forward", "undo", "ping-pong", "journal"):
        updates = training(consistency, apart=False)
        for _ in range(3):
            train_step(updates)
        bytes_of[consistency] = updates.journal_bytes
    parameters = sum(p.nbytes for p in updates.state.model.parameters())
    assert bytes_of["roll-forward"] == 0 and bytes_of["undo"] == parameters
    # Two averages, and a count of 4 bytes for each parameter.
    assert bytes_of["ping-pong"] == 3 * parameters + 4 * 6
    assert parameters < bytes_of["journal"] < bytes_of["ping-pong"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 1.0}, "norm of all gradients is known only when the last bucket"),
        ({"prepare": print}, "what no replica has is known only"),
        ({"consistency": "undo", "optimizer": "amsgrad"}, "Adam cannot be undone: AMSGrad"),
        ({"consistency": "journal", "optimizer": "amsgrad"}, "Adam cannot be undone: AMSGrad"),
        ({"consistency": "pingpong"}, "expected one of auto, roll-forward, ping-pong"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        training(**options)


def test_buckets_must_hold_every_parameter_once() -> None:
    model = network()
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for buckets in ([list(model[0].parameters())], [list(model.parameters()), [model[0].bias]]):
        with pytest.raises(InputError, match="expected each of them once"):
            Updates(state, buckets=buckets)


def test_a_scaler_and_buckets_apart_are_refused() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState(model, optimizer, scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(InputError, match="scaler's look at all gradients"):
        Updates(state, buckets=[[p] for p in model.parameters()])


def test_auto_takes_buffers_where_memory_is_free(monkeypatch) -> None:
    from wirewise.runtime.recovery import consistency

    assert training("auto").consistency == "ping-pong"
    monkeypatch.setattr(consistency, "available_bytes", lambda: 1000)
    assert training("auto").consistency == "undo"
    assert training("auto", "amsgrad").consistency == "roll-forward"


def test_auto_keeps_nothing_where_an_update_begins_with_all_gradients() -> None:
    updates = training("auto", apart=False)
    train_step(updates)
    assert updates.consistency == "roll-forward" and updates.journal_bytes == 0


def test_parameters_without_gradients_do_not_hold_the_others_up() -> None:
    updates = training()
    for p in updates.state.model[1].parameters():
        p.requires_grad_(False)
    updates.adopt(0)
    before = whole(updates)
    train_step(updates)
    assert updates.committed_step == 1
    updates.restore_step(0)
    assert whole(updates) == before


def test_updates_in_backward_need_no_norm_of_all_gradients() -> None:
    updates = training(apart=False, clip=1.0)
    with pytest.raises(InputError, match="norm of all gradients"), updates.in_backward(lambda *_: None):
        raise AssertionError


def test_what_a_script_sets_after_the_update_belongs_to_the_step() -> None:
    updates = training("roll-forward", apart=False)
    train_step(updates)
    (group,) = updates.state.optimizers[0].param_groups
    group["lr"] = 0.5
    updates.restore_step(1)
    assert group["lr"] == 0.5
    updates.seal()
    group["lr"] = 0.25
    updates.restore_step(1)
    assert group["lr"] == 0.5 and updates.phases == ("before", "after")
    group["lr"] = 0.25
    updates.rewind()
    assert group["lr"] == 0.5
    assert updates.replicated_state_of("before")["groups"][0][0]["lr"] == 0.01
    train_step(updates)
    assert updates.phases == ("before",) and not updates.sealed


def test_a_sealed_step_is_taken_back_with_what_the_script_had_set() -> None:
    updates = training("ping-pong", apart=False)
    (group,) = updates.state.optimizers[0].param_groups
    train_step(updates)
    group["lr"] = 0.5
    updates.seal()
    train_step(updates)
    group["lr"] = 0.25
    updates.seal()
    updates.restore_step(1)
    assert group["lr"] == 0.5 and updates.sealed


def test_functions_of_a_commit_run_once_a_step_although_one_raises() -> None:
    called: list[int] = []
    broken = [True, True]

    def on_commit(step: int) -> None:
        if broken[step - 1]:
            broken[step - 1] = False
            raise Broken
        called.append(step)

    updates = training(apart=False, on_commit=on_commit)
    for step in (1, 2):
        with pytest.raises(Broken):
            train_step(updates)
        updates.restore_step(step)
    assert called == [1, 2]
    assert updates.state.schedulers[0].last_epoch == 2


def test_an_adopted_state_after_the_code_is_no_source_of_the_one_before_it() -> None:
    updates = training("roll-forward", apart=False)
    updates.adopt_sealed(3)
    assert updates.phases == ("after",)
    train_step(updates)
    updates.seal()
    assert updates.phases == ("before", "after")


def test_parameters_that_an_optimizer_is_given_later_are_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    updates = Updates(TrainingState(model, optimizer))
    model(torch.ones(1, 2)).sum().backward()
    updates.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(InputError, match=r"optimizer 0 \(SGD\) has 3 parameters, and had 2"):
        updates.seal()
