"""What changes after the start is noticed: flags, hooks, arguments, configurations, counters at doubling distances."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg_models import CLASSES, FEATURES, g
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError
from wirewise.integrations.pyg import model as model_of
from wirewise.integrations.pyg.budget import Interval
from wirewise.integrations.pyg.watch import CheckInterval, ModuleWatch, remember


class Late(nn.Module):
    """Rows are centred once something says so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.out, self.act = g.SAGEConv(FEATURES, 8), nn.Linear(8, CLASSES), nn.Identity()
        self.late, self.options, self.config = False, {"centre": [False]}, SimpleNamespace(centre=False)
        self.calls = 0

    def forward(self, x: Tensor, edge_index: Tensor, centre: bool = False) -> Tensor:
        h = self.act(self.conv(x, edge_index).relu())
        if self.late or self.options["centre"][0] or self.config.centre or centre or self.calls > 4:
            h = h - h.mean(0)
        return self.out(h)


class Centre(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


class Counting(Late):
    def forward(self, x: Tensor, edge_index: Tensor, centre: bool = False) -> Tensor:
        self.calls += 1
        return super().forward(x, edge_index, centre)


def nothing(model: Any) -> dict[str, Any]:
    return {}


def by_flag(model: Any) -> dict[str, Any]:
    model.late = True
    return {}


def by_list_in_dict(model: Any) -> dict[str, Any]:
    model.options["centre"][0] = True
    return {}


def by_configuration(model: Any) -> dict[str, Any]:
    model.config.centre = True
    return {}


def by_argument(model: Any) -> dict[str, Any]:
    return {"centre": True}


def by_module(model: Any) -> dict[str, Any]:
    model.act = Centre()
    return {}


def by_hook(model: Any) -> dict[str, Any]:
    model.act.register_forward_hook(lambda module, args, out: out - out.mean(0))
    return {}


def by_forward(model: Any) -> dict[str, Any]:
    model.act.forward = lambda h: h - h.mean(0)
    return {}


SWITCHES = [by_flag, by_list_in_dict, by_configuration, by_argument, by_module, by_hook, by_forward]


def step(model: Any, data: Any, **more: Any) -> None:
    out = model(data.x, data.edge_index, **more)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_is_noticed_at_the_next_forward(
    switch: Callable[[Any], dict[str, Any]], training: bool
) -> None:
    data, models = a_graph("undirected"), [Late() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(models[rank]), job.data
        for _ in range(3):
            step(mine, own)
        mine.eval()(own.x, own.edge_index)
        mine.train(training)
        more = switch(mine)
        with pytest.raises(InputError, match="depend on other nodes' rows"):
            mine(own.x, own.edge_index, **more)

    run_ranks_as_threads(2, body)


def test_what_the_forward_counts_itself_is_noticed_within_a_few_steps() -> None:
    data, models = a_graph("undirected"), [Counting() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        steps = 0
        with pytest.raises(InputError, match="depend on other nodes' rows"):
            for steps in range(20):  # noqa: B007
                step(mine, job.data)
        assert 4 <= steps <= 10

    run_ranks_as_threads(2, body)


def test_a_counter_is_not_proven_at_each_step_and_keeps_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    data, models = a_graph("undirected"), [Counting() for _ in range(2)]
    proofs = []
    prove = model_of.prove
    monkeypatch.setattr(model_of, "prove", lambda *args, **more: (proofs.append(1), prove(*args, **more)))

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        mine.calls = -1000
        for _ in range(40):
            step(mine, job.data)
        assert mine.calls == -960

    run_ranks_as_threads(2, body)
    # At 1, 2, 4, 8, 16, 32 changes, on two ranks.
    assert len(proofs) <= 2 * 7


def test_proofs_come_again_and_leave_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = a_graph("undirected"), Late()
    proofs = []
    prove = model_of.prove
    monkeypatch.setattr(model_of, "prove", lambda *args, **more: (proofs.append(1), prove(*args, **more)))

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store, prove_every=5)
        mine = job.distribute(model)
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        for _ in range(11):
            step(mine, job.data)
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == random.getstate()
        assert states[2] == np.random.get_state()[1].tolist()  # noqa: NPY002

    run_ranks_as_threads(1, body)
    assert len(proofs) == 3


def test_only_what_changed_is_reported() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    watch = ModuleWatch(model)
    assert not watch.changed()
    model[0].kept = torch.zeros(3)
    assert watch.changed()
    model[0].kept = torch.ones(3)
    assert not watch.changed()
    model[0].kept = torch.ones(4)
    assert watch.changed()
    assert not watch.changed()


def test_new_keys_are_looked_at_while_they_are_rare() -> None:
    rare, frequent = CheckInterval(Interval(1000)), CheckInterval(Interval(1000))
    assert sum(rare.due(n // 50) for n in range(1000)) == 20
    assert sum(frequent.due(n) for n in range(1000)) < 150
    every = CheckInterval(Interval(10))
    assert sum(every.due("a") for _ in range(101)) == 11
    every.suspicious = True
    assert every.due("a")


def test_attributes_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.seen, model.count, model.flags = [1], 3, {"a": 1}
    undo = remember(model)
    model.seen.append(2)
    model.flags["b"] = 2
    model.count, model.new = 4, 5
    undo()
    assert (model.seen, model.count, model.flags, hasattr(model, "new")) == ([1], 3, {"a": 1}, False)
