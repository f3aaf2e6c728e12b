"""The distributed copy of a model: its parameters, its state, numbers of other types, compiling."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg_models import Two, g
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError
from wirewise.integrations import pyg


def a_model() -> nn.Module:
    torch.manual_seed(1)
    return Two(g.SAGEConv, nn.BatchNorm1d)


def gradients(model: nn.Module, data: Any) -> list[torch.Tensor]:
    out = model(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def test_the_model_itself_stays_and_shares_state() -> None:
    data = a_graph("undirected")
    models = [a_model() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        model = models[rank]
        names = list(model.state_dict())
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(model)
        assert list(mine.state_dict()) == names
        assert type(mine) is Two
        gradients(mine, job.data)
        mine.load_state_dict(mine.state_dict())
        a_model().load_state_dict(mine.state_dict())
        assert all(a is b for a, b in zip(model.parameters(), mine.parameters(), strict=True))
        # On one process the model sees the whole graph, and its back-propagation sends nothing.
        alone = copy.deepcopy(model)
        assert distance(gradients(model, data), gradients(alone, data)) < 1e-6
        with torch.no_grad():
            expected = model.eval()(data.x, data.edge_index)
            found = mine.eval()(job.data.x, job.data.edge_index)
        assert distance([found], [expected[job.data.n_id]]) < 1e-5

    run_ranks_as_threads(2, body)


def test_distributed_twice() -> None:
    data, models = a_graph("undirected"), [a_model() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        first = job.distribute(models[rank])
        with pytest.raises(InputError, match="Two is distributed already"):
            job.distribute(first)
        with pytest.raises(InputError, match="cannot be copied"):
            copy.deepcopy(first)
        second, own = job.distribute(models[rank]), job.data
        assert distance(gradients(second, own), gradients(first, own)) < 1e-5
        both = first(own.x, own.edge_index) + second(own.x, own.edge_index)
        with pytest.raises(InputError, match="two distributed models with the same parameters"):
            both[own.train_mask].square().mean().backward()

    run_ranks_as_threads(2, body)


def test_a_model_that_is_dropped_goes_with_its_threads_while_the_one_it_came_from_stays() -> None:
    data, models = a_graph("undirected"), [a_model() for _ in range(2)]
    before = set(threading.enumerate())

    def body(rank: int, group: Any, store: Any) -> list[weakref.ref[Any]]:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(models[rank])
        gradients(mine, job.data)
        return [weakref.ref(one) for one in (mine, job, job.transport)]

    held = [ref for found in run_ranks_as_threads(2, body) for ref in found]
    gc.collect()
    assert [ref() for ref in held] == [None] * 6
    assert [t.name for t in threading.enumerate() if t not in before] == []
    # What is left on the parameters does nothing.
    assert len(gradients(models[0], data)) == len(list(models[0].parameters()))


def test_float64_is_exact() -> None:
    data = a_graph("undirected")
    data.x = data.x.double()
    model = a_model().double()
    copies = [copy.deepcopy(model) for _ in range(2)]
    expected = gradients(model, data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(copies[rank])
        x = data.x[job.data.n_id]
        found = mine(x, job.data.edge_index)
        F.cross_entropy(found[job.data.train_mask], job.data.y[job.data.train_mask]).backward()
        assert distance([p.grad for p in mine.parameters()], expected) < 1e-12
        with pytest.raises(InputError, match="changed their type"):
            mine.float()(job.data.x, job.data.edge_index)

    run_ranks_as_threads(2, body)


@pytest.mark.parametrize("make", [g.SAGEConv, g.GCNConv, g.GATConv])
def test_autocast(make: Any) -> None:
    data = a_graph("undirected")
    torch.manual_seed(1)
    model = Two(make)
    copies = [copy.deepcopy(model) for _ in range(2)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = gradients(model, data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(copies[rank])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = mine(job.data.x, job.data.edge_index)
            assert out.dtype == torch.bfloat16
            assert distance(gradients(mine, job.data), expected) < 0.05

    run_ranks_as_threads(2, body)


def test_compiled_models() -> None:
    data, model = a_graph("undirected"), a_model()
    expected = gradients(copy.deepcopy(model), data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        with pytest.raises(InputError, match="compiled already"):
            job.distribute(torch.compile(copy.deepcopy(model), backend="eager"))
        mine = torch.compile(job.distribute(model), backend="eager")
        assert distance(gradients(mine, job.data), expected) < 1e-5

    run_ranks_as_threads(1, body)


def test_data_objects_are_passed_whole() -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = a_model()

        def forward(self, data: Any) -> torch.Tensor:
            return self.inner(data.x, data.edge_index)

    data, model = a_graph("undirected"), Takes()
    with torch.no_grad():
        expected = model.eval()(data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        with torch.no_grad():
            assert distance([job.distribute(model)(job.data)], [expected[job.data.n_id]]) < 1e-5

    run_ranks_as_threads(1, body)


class Fussy(nn.Module):
    """A model that cannot be run on the rows that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = g.SAGEConv(3, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.conv(x, edge_index)
        raise IndexError("index out of range in self")


def test_an_error_of_the_model_names_the_rank_whose_rows_it_met() -> None:
    data = a_graph("directed")
    data.x = torch.rand(data.num_nodes, 3)

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        model = job.distribute(Fussy())
        with pytest.raises(InputError, match=rf"own rows of rank {rank} \(IndexError: index out of range"):
            model(job.data.x, job.data.edge_index)

    run_ranks_as_threads(2, body)
