"""Arguments of an unmodified script's calls are changed where it makes them, and nowhere else."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from wirewise import instruments
from wirewise.errors import InputError, PeerError
from wirewise.files import write_json
from wirewise.trials.inside import Restart
from wirewise.trials.inside.changing import Calls, change
from wirewise.trials.inside.restarting import RestartResult, _Run, read_results, result_file

DATA = TensorDataset(torch.arange(12.0).reshape(12, 1))


@pytest.fixture(autouse=True)
def classes(monkeypatch):
    for owner, names in {
        DataLoader: ("__init__", "__iter__"),
        DistributedDataParallel: ("__init__", "forward"),
        Optimizer: ("__init__",),
    }.items():
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Endless(IterableDataset):
    def __iter__(self):
        yield from range(4)


def test_loaders_get_workers_once_and_yield_what_they_did():
    calls = change({"num_workers": 1})
    loader = DataLoader(DATA, 4)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 4, True)
    # One that is built from it, and one that has more.
    assert DataLoader(DATA, 4, num_workers=loader.num_workers).num_workers == 1
    assert DataLoader(DATA, num_workers=2, prefetch_factor=7).prefetch_factor == 7
    assert torch.cat([batch for (batch,) in loader]).flatten().tolist() == list(range(12))
    assert calls.workers == 1 and calls.changed == {"num_workers"} and not calls.refused


def test_a_stream_keeps_its_workers_and_says_why():
    calls = change({"num_workers": 2})
    assert list(DataLoader(Endless(), batch_size=None)) == [0, 1, 2, 3]
    assert calls.workers == 0 and not calls.changed and "yields all samples" in calls.refused["num_workers"]


@pytest.mark.parametrize("flag", ["gradient_as_bucket_view", "static_graph"])
def test_a_wrapped_model_gets_its_flag(flag, alone):
    calls = change({flag: True})
    model = DistributedDataParallel(nn.Linear(2, 2), None, None, 0)
    assert getattr(model, flag) is True and calls.wrapper[flag] is True and calls.changed == {flag}


def test_accumulation_executes_and_exchanges_one_of_its_steps(alone):
    calls = change({"accumulation": 3})
    exchanged = []

    def count(state, bucket):
        exchanged.append(len(weights) - 1)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    layer = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(layer)
    model.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    weights = [layer.weight.item()]
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        scheduler.step()
        weights.append(layer.weight.item())
    # The gradient of each pass is one; three of them make a step.
    moved = [round(before - after, 4) for before, after in pairwise(weights)]
    assert moved == [0, 0, 3, 0, 0, 3] and exchanged == [2, 5] and calls.changed == {"accumulation"}


def test_a_closure_runs_in_each_step_of_accumulation():
    change({"accumulation": 2})
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    assert [optimizer.step(lambda: 7.0) for _ in range(3)] == [7.0] * 3


def test_an_argument_that_cannot_be_changed_is_refused():
    with pytest.raises(InputError, match="cannot change the argument 'magic'; expected some of: num_workers"):
        change({"magic": 1})


def test_the_slowest_rank_counts_and_one_that_left_nothing_is_named(tmp_path):
    for rank, seconds in enumerate([[1.0, 4.0], [3.0, 2.0]]):
        write_json(result_file(tmp_path, rank), RestartResult(ranks=2, seconds=seconds, workers=1))
    assert read_results(tmp_path).seconds == [3.0, 4.0]
    result_file(tmp_path, 1).unlink()
    with pytest.raises(PeerError, match="rank 1 of 2 left no"):
        read_results(tmp_path)


def test_steps_end_with_the_optimizer_that_steps_first(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr("wirewise.trials.inside.restarting.end_process", lambda: ended.append(True))
    run = _Run(Restart(folder=str(tmp_path), warmup=2, steps=3), Calls())
    for _ in range(6):
        for optimizer in ("one", "other"):
            run.after_step(optimizer)
    assert len(ended) == 1 and len(read_results(tmp_path).seconds) == 3


def test_the_mode_of_a_graph_is_that_of_the_trial(monkeypatch):
    # Taken out again at the end, with what replaces it.
    monkeypatch.setitem(instruments.CHANGES, "graph_mode", lambda mode: mode)
    assert instruments.argument("graph_mode", "fp32") == "fp32"
    calls = change({"graph_mode": "uniform-8"})
    assert not calls.changed
    assert instruments.argument("graph_mode", "fp32") == "uniform-8" and calls.changed == {"graph_mode"}
