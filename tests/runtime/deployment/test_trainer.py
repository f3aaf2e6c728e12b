"""Trainings under deployment plans against one process: any rows, any communication, any place of each module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.harness.tiers import keep
from tests.runtime.deployment.examples import batches, chain, deployed, group, one_process, plan_of, skip
from wirewise.errors import InputError, PeerError, PlanError
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph

CHAIN = ("in", "wide", "act", "out")

PLANS = {
    "data parallel": lambda: plan_of(2, [group(CHAIN, {0: 4, 1: 4})]),
    "uneven rows": lambda: plan_of(3, [group(CHAIN, {0: 1, 1: 5, 2: 2})]),
    "servers": lambda: plan_of(3, [group(CHAIN, {0: 1, 1: 5, 2: 2}, "ps", owners=(0, 1, 1, 2))]),
    "factors": lambda: plan_of(3, [group(CHAIN, {0: 1, 1: 5, 2: 2}, "duplicate", duplicated=("wide", "out"))]),
    "one owner": lambda: plan_of(3, [group(CHAIN, {}, "mp", owners=(2, 0, 0, 1))]),
    "all at once": lambda: plan_of(
        4,
        [
            group(("in",), {0: 3, 2: 5}, "ps", owners=(2,), priority=1),
            group(("wide",), {0: 1, 1: 2, 2: 3, 3: 2}, "duplicate", duplicated=("wide",)),
            group(("act", "out"), {}, "mp", owners=(3, 1)),
        ],
    ),
    "another order of gradients": lambda: plan_of(
        2,
        [
            group(("in",), {0: 6, 1: 2}, priority=0),
            group(("wide", "act"), {0: 2, 1: 6}, priority=2),
            group(("out",), {0: 4, 1: 4}, "ps", owners=(1,), priority=1),
        ],
    ),
}  # fmt: skip


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", keep(["uneven rows", "servers", "factors", "all at once"], PLANS))
def test_f7_any_plan_trains_as_one_process(name):
    data = batches(10)
    losses, state = one_process(chain(), data)
    for found, own, _ in deployed(chain(), PLANS[name](), data):
        assert found == pytest.approx(losses, abs=1e-5)
        assert all(torch.allclose(own[key], value, atol=1e-5) for key, value in state.items())


def test_f7_a_value_that_goes_past_a_module_to_other_rows():
    model, data = skip(), batches(10)
    losses, state = one_process(model, data)
    first, *others = model.names
    plan = plan_of(
        3, [group((first,), {0: 2, 1: 6}), group(others[:1], {1: 3, 2: 5}), group(others[1:], {0: 7, 2: 1})]
    )
    for found, own, _ in deployed(model, plan, data):
        assert found == pytest.approx(losses, abs=1e-5)
        assert all(torch.allclose(own[key], value, atol=1e-5) for key, value in state.items())


def test_bytes_are_those_of_the_plan():
    model, data = chain(), batches(3)
    sizes = {n: sum(4 * p.numel() for p in m.parameters()) for n, m in model.modules.items()}
    row = 8 * 4
    plan = plan_of(
        2,
        [
            group(("in",), {0: 4, 1: 4}, "ps", owners=(1,)),
            group(("wide", "act"), {0: 2, 1: 6}),
            group(("out",), {0: 4, 1: 4}, "duplicate", duplicated=("out",)),
        ],
    )
    found = [seen for _, _, seen in deployed(model, plan, data, lambda d: d.bytes_sent)]
    # Rank 0 gives rank 1 two rows and gets two back, each with its gradient; rank 1 the same the other way round.
    moved = 2 * 2 * row
    factors = 4 * 4 * (8 + 4)
    assert found == [3 * (sizes["in"] + sizes["wide"] + moved + factors)] * 2


def test_a_rank_has_the_modules_of_its_rows():
    plan = PLANS["all at once"]()
    own = [seen for _, _, seen in deployed(chain(), plan, batches(1), lambda d: tuple(d.modules))]
    assert own == [("in", "wide"), ("wide", "out"), ("in", "wide"), ("wide", "act")]


def _made(layers, plan, x=None, y=None):
    def rank(number, bare, store):
        deployment = Deployment(
            layers, plan, loss=nn.functional.mse_loss, process_group=bare, store=store, timeout_s=5.0
        )
        try:
            return deployment.step(x, y)
        finally:
            deployment.close()

    return run_ranks_as_threads(plan.world_size, rank)


def test_what_does_not_fit_is_refused_by_name():
    two = {0: 4, 1: 4}
    (x, y), *_ = batches(1)
    with pytest.raises(PlanError, match=r"differ in the modules \['out'\]"):
        _made(chain(), plan_of(2, [group(CHAIN[:3], two)]), x, y)
    with pytest.raises(InputError, match="'input' has 6 rows; expected 8, the batch of the plan"):
        _made(chain(), plan_of(2, [group(CHAIN, two)]), x[:6], y)
    normed = LayerGraph({"in": nn.Linear(6, 8), "norm": nn.BatchNorm1d(8), "out": nn.Linear(8, 4)})
    with pytest.raises(InputError, match=r"BatchNorm1d .* mixes the rows of a batch, on ranks \[0, 1\]"):
        _made(normed, plan_of(2, [group(("in", "norm", "out"), two)]), x, y)
    tied = nn.Linear(6, 6)
    shared = LayerGraph({"in": tied, "again": tied, "out": nn.Linear(6, 4)})
    with pytest.raises(PlanError, match="'in' and 'again' share the parameter 'weight'"):
        _made(shared, plan_of(2, [group(("in",), two), group(("again", "out"), {0: 2, 1: 6})]), x, y)
    with pytest.raises(PlanError, match="made for world size 3, the process group has 2 ranks"):

        def rank(number, bare, store):
            Deployment(
                chain(), plan_of(3, [group(CHAIN, {0: 8})]), loss=nn.functional.mse_loss, process_group=bare
            )

        run_ranks_as_threads(2, rank)


def test_a_module_that_changes_the_number_of_rows_is_refused():
    class Half(nn.Module):
        def forward(self, x):
            return x[::2]

    (x, y), *_ = batches(1)
    layers = LayerGraph({"in": nn.Linear(6, 8), "half": Half(), "out": nn.Linear(8, 4)})
    with pytest.raises(InputError, match=r"'half' returned a \[2, 8\] tensor for 4 rows"):
        _made(layers, plan_of(2, [group(("in", "half", "out"), {0: 4, 1: 4})]), x, y)


def test_batch_norm_on_one_rank_is_that_of_one_process():
    torch.manual_seed(1)
    layers = LayerGraph({"in": nn.Linear(6, 8), "norm": nn.BatchNorm1d(8), "out": nn.Linear(8, 4)})
    plan = plan_of(
        2,
        [
            group(("in",), {0: 3, 1: 5}),
            group(("norm",), {}, "mp", owners=(1,)),
            group(("out",), {0: 2, 1: 6}),
        ],
    )
    data = batches(10)
    losses, state = one_process(layers, data)
    for found, own, _ in deployed(layers, plan, data):
        assert found == pytest.approx(losses, abs=1e-5)
        assert all(
            torch.allclose(own[key].double(), value.double(), atol=1e-5) for key, value in state.items()
        )


def test_f7_a_model_that_gives_its_loss_as_users_write_it():
    from torch.nn import functional

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 32), nn.Linear(32, 4)

        def forward(self, x, target):
            return functional.mse_loss(self.second(torch.tanh(self.first(x))), target)

    torch.manual_seed(6)
    model, data = WithLoss(), batches(10)
    layers = LayerGraph(model, several=True)
    first, *others = layers.names
    plan = plan_of(2, [group((first,), {0: 2, 1: 6}, "ps", owners=(1,)), group(others, {0: 5, 1: 3})])
    losses, state = one_process(layers, data, loss=None)
    for found, own, _ in deployed(layers, plan, data, loss=None):
        assert found == pytest.approx(losses, abs=1e-5)
        assert all(torch.allclose(own[key], value, atol=1e-5) for key, value in state.items())


@pytest.mark.slow
def test_a_rank_that_stays_away_is_named():
    plan = PLANS["data parallel"]()
    (x, y), *_ = batches(1)

    def rank(number, bare, store):
        deployment = Deployment(
            chain(), plan, loss=nn.functional.mse_loss, process_group=bare, store=store, timeout_s=0.5
        )
        try:
            if number == 0:
                with pytest.raises(
                    PeerError, match=r"waited in the gradients of 'in' to 'out': rank 1 (closed|sent nothing)"
                ):
                    deployment.step(x, y)
        finally:
            deployment.close()

    run_ranks_as_threads(2, rank)
