"""What a tracer records of real ranks is what they did."""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from tests.harness.processes import run_ranks_as_processes
from torch import nn

from wirewise.errors import InputError
from wirewise.profile import Tracer
from wirewise.trace import Trace, align, build, match, read

STEPS, WARMUP = 4, 3
SLEPT_S = 0.02


class Slept(nn.Module):
    def forward(self, x):
        time.sleep(SLEPT_S)
        return x


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(40, 60), nn.ReLU(inplace=True), Slept(), nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 3)
    )


def trained(rank: int, folder: str, record: bool) -> list[torch.Tensor]:
    net = model()
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.011)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    tracer = Tracer(folder, ddp, optimizer=optimizer, warmup=WARMUP, steps=STEPS) if record else None
    for step in range(WARMUP + STEPS + 2):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(step * 2 + rank))
        optimizer.zero_grad()
        ddp(x).pow(2).sum().backward()
        optimizer.step()
    if tracer:
        tracer.close()
        assert dist.Work.wait.__name__ == "wait"
    return [p.detach().clone() for p in net.parameters()]


def twice(rank: int, folder: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights after training without and with a tracer."""
    return trained(rank, folder, False), trained(rank, folder, True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Trace, list]:
    folder = tmp_path_factory.mktemp("run")
    weights = run_ranks_as_processes(2, twice, str(folder))
    return read(folder), weights


@pytest.mark.dist
def test_recording_changes_nothing(recorded):
    for plain, traced in zip(*recorded[1][0], strict=True):
        assert torch.equal(plain, traced)


@pytest.mark.dist
def test_every_step_of_the_window_is_there(recorded):
    trace, _ = recorded
    assert trace.steps() == list(range(WARMUP, WARMUP + STEPS))
    assert all(rank.complete for rank in trace.ranks)
    assert len({rank.header.run for rank in trace.ranks}) == 1


@pytest.mark.dist
def test_buckets_carry_all_gradients_with_their_names(recorded):
    trace, _ = recorded
    names = {name for name, _ in model().named_parameters()}
    total = sum(p.numel() * 4 for p in model().parameters())
    for rank in range(2):
        for step in trace.steps():
            buckets = [op for op in trace.of(rank, step) if op.kind == "communication"]
            assert len(buckets) > 1
            assert sum(op.size_bytes for op in buckets) == total
            assert {name for op in buckets for name in op.parameters} == names
            assert [op.name for op in sorted(buckets, key=lambda op: op.seq)] == [
                f"bucket {i}" for i in range(len(buckets))
            ]


@pytest.mark.dist
def test_modules_gradients_and_waits(recorded):
    trace, _ = recorded
    ops = trace.of(0, WARMUP + 1)
    forward = {op.name: op for op in ops if op.kind == "forward"}
    assert set(forward) == {"forward", "0", "1", "2", "3", "4", "5"}
    assert forward["2"].end_s - forward["2"].start_s >= SLEPT_S
    backward = [op for op in ops if op.kind == "backward" and op.gradient_bytes]
    assert [op.name for op in backward] == ["5", "3", "0"]
    assert sum(op.gradient_bytes for op in backward) == sum(p.numel() * 4 for p in model().parameters())
    waits = {op.seq: op for op in ops if op.kind == "wait"}
    buckets = {op.seq: op for op in ops if op.kind == "communication"}
    assert waits.keys() == buckets.keys()
    for seq, wait in waits.items():
        # Nothing goes on before what it waits for is done; times are whole microseconds.
        assert wait.end_s >= min(buckets[seq].end_s, wait.start_s) - 1e-6
    assert [op.name for op in ops if op.kind == "optimizer"] == ["optimizer"]


@pytest.mark.dist
def test_the_graph_of_each_step_is_sound(recorded):
    """R1: acyclic, every collective on all ranks with equal bytes, no op alone, all ops there."""
    trace = align(recorded[0])
    found = [one for one in match(trace) if one.step >= 0]
    assert len(found) == sum(op.kind == "communication" for op in trace.ranks[0].ops)
    for step in trace.steps():
        graph = build(trace, step)
        kept = {name for members in graph.member_ops for name in members}
        told = {op.name for rank in range(2) for op in trace.of(rank, step) if op.kind != "step"}
        assert kept == told


def two_runs(rank: int, folder: str) -> None:
    for number in range(2):
        # Rank 0 is late: the others must not take the first run for the second.
        time.sleep(0.2 * (rank == 0))
        with Tracer(f"{folder}/{number}", warmup=0, steps=None, round_trips=5) as tracer:
            dist.barrier()
            tracer.step()


@pytest.mark.dist
def test_one_tracer_after_the_other(tmp_path):
    run_ranks_as_processes(2, two_runs, str(tmp_path))
    runs = [read(tmp_path / str(number)).ranks for number in range(2)]
    assert len({ranks[0].header.run for ranks in runs}) == 2


def failing(rank: int, folder: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tracer = Tracer(folder, net, optimizer=optimizer, warmup=1, steps=None, round_trips=0)
    for step in range(5):
        net(torch.ones(2, 40)).sum().backward()
        if step == 3 and rank == 1:
            tracer.abandon()
            return
        optimizer.step()
    tracer.close()


@pytest.mark.slow
@pytest.mark.dist
def test_a_rank_that_stops_early_leaves_its_steps(tmp_path):
    run_ranks_as_processes(2, failing, str(tmp_path))
    assert read(tmp_path).steps() == [1, 2]


def test_one_process_and_own_steps(tmp_path):
    net = model()
    with Tracer(tmp_path, net, warmup=0, steps=None, every=2) as tracer:
        for item in tracer.data([torch.ones(2, 40)] * 4):
            net(item).sum().backward()
            tracer.step()
        with pytest.raises(InputError, match="recording already"):
            Tracer(tmp_path)
    trace = read(tmp_path)
    assert trace.steps() == [0, 2]
    assert {op.kind for op in trace.of(0, 2)} >= {"data", "forward", "backward", "step"}


def test_steps_have_one_master(tmp_path):
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    with (
        Tracer(tmp_path, optimizer=optimizer) as tracer,
        pytest.raises(InputError, match="as the tracer was told"),
    ):
        tracer.step()


def steps_with(folder: Path) -> dict[int, int]:
    """Steps of optimizers in each recorded step."""
    trace = read(folder)
    return {step: sum(op.kind == "optimizer" for op in trace.of(0, step)) for step in trace.steps()}


def test_steps_go_on_with_an_optimizer_that_replaces_the_first(tmp_path):
    net = model()
    with Tracer(tmp_path, net, optimizer="first", warmup=2, steps=None):
        for steps in (4, 20):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(steps):
                net(torch.ones(2, 40)).sum().backward()
                optimizer.step()
    # The one with the eight steps that it takes to notice is left out.
    assert steps_with(tmp_path) == dict.fromkeys([2, 3, *range(5, 17)], 1)


def test_an_optimizer_that_steps_more_often_than_the_first_ends_no_step(tmp_path):
    generator, critic, encoder = (torch.optim.SGD(model().parameters(), lr=0.1) for _ in range(3))
    with Tracer(tmp_path, optimizer="first", warmup=1, steps=None):
        for _ in range(6):
            generator.step()
            encoder.step()
            for _ in range(5):
                critic.step()
    assert steps_with(tmp_path) == dict.fromkeys(range(1, 6), 7)


def forking(_rank: int, folder: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Tracer(folder, net, optimizer="first", warmup=0, steps=None, round_trips=0):
        for step in range(5):
            net(torch.ones(2, 40)).sum().backward()
            if step == 2 and os.fork() == 0:
                # It trains on, and leaves as `sys.exit` does.
                for _ in range(2):
                    optimizer.step()
                atexit._run_exitfuncs()
                os._exit(0)
            optimizer.step()
        os.wait()


@pytest.mark.dist
def test_a_process_that_the_script_forks_writes_nothing_into_its_parents_trace(tmp_path):
    run_ranks_as_processes(1, forking, str(tmp_path))
    assert steps_with(tmp_path) == dict.fromkeys(range(5), 1)


@pytest.mark.parametrize("wrong", [{"warmup": -1}, {"steps": 0}, {"every": 0}])
def test_numbers_that_make_no_sense(wrong, tmp_path):
    with pytest.raises(InputError, match="expected at least"):
        Tracer(tmp_path, **wrong)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot create the folder"):
        Tracer(Path(tmp_path / "file" / "run"))
