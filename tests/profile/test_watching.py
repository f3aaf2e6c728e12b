"""A job that is watched trains as before, and what its ranks do is in the history."""

import datetime
import logging
import os
import time
from types import SimpleNamespace

import pytest
import torch
from tests.harness.processes import run_ranks_as_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, dataloader
from typer.testing import CliRunner

import wirewise
from wirewise.cli.main import app
from wirewise.cost.drift import StepWindow, WatchEvent, read_history
from wirewise.errors import InputError
from wirewise.plans import Bucket, FusionPlan
from wirewise.profile import watching
from wirewise.runtime.data_parallel import PlanSwap, parallel


def train(model, steps, pause_s=lambda step: 0.0, **watched):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = wirewise.watch(model, optimizer, **watched) if watched else None
    data = DataLoader(TensorDataset(torch.ones(steps, 8)), batch_size=1)
    for step, (batch,) in enumerate(data):
        optimizer.zero_grad()
        time.sleep(pause_s(step))
        model(batch).square().mean().backward()
        optimizer.step()
    if watch is not None:
        watch.close()
    return [one.detach().clone() for one in model.parameters()]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def test_training_is_bit_equal_and_nothing_is_left(tmp_path):
    before = dataloader._BaseDataLoaderIter.__next__
    plain, seen = train(net(), 40), train(net(), 40, folder=tmp_path, every=10)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert dataloader._BaseDataLoaderIter.__next__ is before
    found = read_history(tmp_path)
    assert [one.step for one in found if isinstance(one, StepWindow)] == [10, 20, 30, 40]
    last = [one for one in found if isinstance(one, StepWindow)][-1]
    assert last.step_s[0] > last.data_s[0] > 0 and last.exchange_s[0] > 0 and last.memory_bytes[0] > 1e7
    assert last.processors[0] > 0 and last.device_use == last.device_clock_hz == (None,)
    assert last.host_use[0] is None or 0 <= last.host_use[0] <= 1


def test_a_machine_without_psutil_is_watched_by_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("wirewise.profile.system.find_spec", lambda name: None)
    train(net(), 20, folder=tmp_path, every=10)
    assert [one.host_use for one in read_history(tmp_path)] == [(None,), (None,)]
    told = CliRunner().invoke(app, ["watch", "show", str(tmp_path)])
    assert told.exit_code == 0 and "processors" in told.stdout


def _late_rank(rank, folder):
    model = DistributedDataParallel(net())
    # Rank 1 is late from step 60 on; both pauses are far above what a busy machine adds.
    train(
        model, 120, lambda step: 0.03 + (0.06 if rank == 1 and step >= 60 else 0.0), folder=folder, every=10
    )
    return torch.distributed.get_rank()


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_becomes_late_is_named(tmp_path):
    run_ranks_as_processes(2, _late_rank, str(tmp_path), timeout_s=120)
    events = [one for one in read_history(tmp_path) if isinstance(one, WatchEvent)]
    assert any((one.cause, one.rank) == ("compute", 1) for one in events), events
    told = CliRunner().invoke(app, ["watch", "show", str(tmp_path)])
    assert told.exit_code == 0 and "rank 1 computes" in told.stdout


def test_a_drift_is_one_line_of_the_log(tmp_path, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def compute(step):
        now[0] += 0.03 if step >= 70 else 0.001
        return 0.0

    with caplog.at_level(logging.WARNING, "wirewise.watch"):
        train(net(), 140, compute, folder=tmp_path, every=10)
    (line,) = [one.getMessage() for one in caplog.records if "computes" in one.getMessage()]
    assert line.startswith("step 90: a step takes 30 ms instead of 1 ms") and "rank 0 computes" in line


class Swap:
    """Notes what is asked of it; a plan is ready some windows after it was asked for."""

    def __init__(self, better):
        self.calls, self.better, self.is_ready = [], better, False

    def ask(self, step):
        self.calls.append(("ask", step))
        self.is_ready = True

    def change(self, step_s):
        self.calls.append(("change", round(step_s, 3)))
        self.is_ready = False
        return self.better

    def settle(self, step_s):
        self.calls.append(("settle", round(step_s, 3)))
        return False

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize("better", [True, False])
def test_a_drift_asks_for_a_plan_that_is_settled_once_its_steps_are_known(tmp_path, monkeypatch, better):
    now, swap = [0.0], Swap(better)
    monkeypatch.setattr(watching, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def compute(step):
        changed = ("change", 0.03) in swap.calls and better
        now[0] += 0.001 if step < 70 else 0.02 if changed else 0.03
        return 0.0

    train(net(), 300, compute, folder=tmp_path, every=10, replan=swap)
    # Asked for where the drift is confirmed, taken a window later; a plan that was not better is not tried.
    settled = [("settle", 0.02)] if better else []
    assert swap.calls == [("ask", 90), ("change", 0.03), *settled, "close"]


def _swapped(rank, folder):
    now = [0.0]
    watching.time = SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic, sleep=time.sleep)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD((layer := nn.Linear(5, 3)).parameters(), 0.1)
    first, second = (plans_of(codec, step_s) for codec, step_s in (("none", 0.0), ("efsign", 0.01)))
    model = parallel(layer, first, optimizer)
    swap = PlanSwap(model, lambda slowdown, present: second, probe=lambda *_: 0.01)
    watch = wirewise.watch(model, optimizer, folder=folder, every=10, replan=swap)
    names = []
    for step in range(200):
        now[0] += 0.001 if step < 70 else 0.03
        model(torch.ones(4, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        names.append(model.plan.planner)
        time.sleep(0.002 * rank)
    watch.close()
    model.reducer.close()
    return names, swap.changes, [one.detach().clone() for one in layer.parameters()]


def plans_of(codec, step_s):
    scheme = "all_reduce" if codec == "none" else "all_gather"
    bucket = Bucket(parameters=("bias", "weight"), size_bytes=72, codec=codec, scheme=scheme)
    return FusionPlan(
        world_size=2, planner=codec, buckets=(bucket,), predicted_step_s=step_s, baseline_step_s=2 * step_s
    )


@pytest.mark.dist
@pytest.mark.slow
def test_all_ranks_change_the_plan_in_the_same_step(tmp_path):
    (names, changes, own), (others, _, theirs) = run_ranks_as_processes(2, _swapped, str(tmp_path))
    assert names == others and names[0] == "none" and names[-1] == "efsign"
    # Two windows confirm the drift, and their rows are there a window later, or later still on busy processors.
    ((asked, slowdown),) = changes
    assert slowdown == 1.0 and 100 <= asked < names.index("efsign")
    assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))


def test_what_is_no_swap_is_refused(tmp_path):
    optimizer = torch.optim.SGD((model := net()).parameters(), 0.1)
    with pytest.raises(InputError, match=r"replan is a function; expected a PlanSwap\(model, planner\)"):
        wirewise.watch(model, optimizer, folder=tmp_path, replan=train)


def _replans_alone(rank, folder):
    optimizer = torch.optim.SGD(net().parameters(), 0.01)
    with pytest.raises(InputError, match=r"rank 1 watches without replan, rank 0 with it; expected the same"):
        wirewise.watch(net(), optimizer, folder=folder, replan=None if rank else Swap(True))
    return rank


@pytest.mark.dist
@pytest.mark.slow
def test_a_swap_of_the_plan_on_one_rank_alone_is_refused(tmp_path):
    assert run_ranks_as_processes(2, _replans_alone, str(tmp_path), timeout_s=60) == [0, 1]


def _windows_of_two_lengths(rank):
    optimizer = torch.optim.SGD(net().parameters(), 0.01)
    with pytest.raises(
        InputError, match=r"rank 1 watches windows of 20 steps, rank 0 of 10; expected the same"
    ):
        wirewise.watch(net(), optimizer, every=10 * (rank + 1))
    return rank


@pytest.mark.dist
@pytest.mark.slow
def test_windows_of_other_lengths_on_other_ranks_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_ranks_as_processes(2, _windows_of_two_lengths, timeout_s=60) == [0, 1]


def test_windows_that_do_not_meet_end_the_history_and_not_the_job(tmp_path, caplog):
    model = net()
    watch = wirewise.watch(model, torch.optim.SGD(model.parameters(), 0.01), folder=tmp_path, every=10)

    def timeout():
        raise RuntimeError("Timed out waiting 60000ms for recv\nmore")

    watch._sent.append((10, SimpleNamespace(is_completed=lambda: True, wait=timeout), []))
    train(model, 5)
    watch._receive()
    (line,) = [one.getMessage() for one in caplog.records]
    assert (
        line.startswith("step 10: the ranks are not watched any more") and "waiting 60000ms for recv." in line
    )
    watch.close()
    assert not watch._sent and read_history(tmp_path) == []


def _daemon(_rank, folder):
    os.chdir(folder)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = wirewise.watch(model, optimizer, folder="watched", every=5)
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    # As daemons do: a session, a folder and files of its own.
    os.setsid()
    os.chdir("/")
    os.closerange(3, 256)
    for _ in range(20):
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    watch.close()
    os._exit(0)


@pytest.mark.dist
@pytest.mark.slow
def test_a_script_that_becomes_a_daemon_keeps_its_history(tmp_path):
    assert run_ranks_as_processes(1, _daemon, str(tmp_path), timeout_s=100) == [0]
    assert [one.step for one in read_history(tmp_path / "watched")] == [5, 10, 15, 20]


def test_a_history_is_followed_until_ctrl_c(tmp_path, monkeypatch):
    train(net(), 20, folder=tmp_path, every=10)
    pauses = []

    def pause(_seconds):
        pauses.append(None)
        if len(pauses) == 2:
            train(net(), 10, folder=tmp_path, every=5)
        elif len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("wirewise.cli.watch.time", SimpleNamespace(sleep=pause))
    told = CliRunner().invoke(app, ["watch", "show", str(tmp_path), "--follow"])
    assert told.exit_code == 130, told.output
    before, _, after = told.stdout.partition("The job was started anew.")
    assert "\n20\t" in before and [line.split("\t")[0] for line in after.split("\n") if line] == ["5", "10"]


def _watched_on_one_rank(rank):
    watching._MEETING = datetime.timedelta(seconds=3)
    if rank == 0:
        optimizer = torch.optim.SGD(net().parameters(), 0.01)
        with pytest.raises(InputError, match=r"rank 0 called watch, and not all of 2 ranks did within 3 s"):
            wirewise.watch(net(), optimizer)
    torch.distributed.barrier()
    return rank


@pytest.mark.dist
@pytest.mark.slow
def test_a_job_that_is_watched_on_one_rank_alone_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_ranks_as_processes(2, _watched_on_one_rank, timeout_s=60) == [0, 1]


def test_a_folder_that_takes_no_files_ends_the_history_and_not_the_job(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    train(net(), 20, folder=tmp_path / "file" / "below", every=10)
    assert any("is not written any more" in one.getMessage() for one in caplog.records)


def test_what_cannot_be_watched_is_refused(tmp_path):
    frozen = net().requires_grad_(False)
    optimizer = torch.optim.SGD(net().parameters(), 0.1)
    with pytest.raises(InputError, match=r"got Sequential with no parameters that learn"):
        wirewise.watch(frozen, optimizer, folder=tmp_path)
    with pytest.raises(InputError, match=r"windows of 1 steps"):
        wirewise.watch(net(), optimizer, folder=tmp_path, every=1)
    told = CliRunner().invoke(app, ["watch", "show", str(tmp_path / "none")])
    assert told.exit_code == 2 and "expected the folder that wirewise.watch was given" in told.output
