"""Ranks that die or stop responding while gradients travel are named by all others."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import run_ranks_as_processes
from tests.harness.threads import run_ranks_as_threads
from tests.harness.tiers import slow
from tests.runtime.data_parallel.examples import batch, made, random_plan, sequential, whole
from wirewise.errors import PeerError
from wirewise.runtime.data_parallel import Reducer, hook, parallel


def step(model: nn.Module, rank: int, number: int = 0) -> None:
    x, y = batch(rank, number)
    nn.functional.cross_entropy(model(x), y).backward()


@pytest.mark.slow
def test_a_silent_rank_is_named():
    def body(rank: int, group: Any, store: Any) -> str:
        model = made(sequential)
        reducer = Reducer(model, whole(model, 3), group, store=store, timeout_s=1.0)
        if rank == 2:
            time.sleep(5)
            return ""
        with pytest.raises(PeerError) as caught:
            step(model, rank)
        assert reducer.transport.rank == rank
        return str(caught.value)

    messages = run_ranks_as_threads(3, body)
    for rank in (0, 1):
        assert f"rank {rank} waited in the all-reduce of bucket 0: rank 2 " in messages[rank]
    # Who gives up first knows of the silence, the other one perhaps only that the first gave up.
    assert any("rank 2 sent nothing for 1 s" in message for message in messages[:2])


def reduced(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    return parallel(model, random_plan(model, 3, 1), optimizer, timeout_s=20)


def hooked(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(*hook(whole(model, 3), timeout_s=20))
    return wrapped


def dying(rank: int, folder: str, wrap: Callable[[nn.Module, torch.optim.Optimizer], nn.Module]) -> None:
    """Rank 1 dies in step 3; the others write down what they are told."""
    model = made(sequential)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer)
    told = [Path(folder, str(other)) for other in (0, 2)]
    with pytest.raises(PeerError) as caught:
        for number in range(50):
            if rank == 1 and number == 3:
                die(told)
            optimizer.zero_grad()
            step(wrapped, rank, number)
            optimizer.step()
    Path(folder, f"{rank}.part").write_text(str(caught.value))
    Path(folder, f"{rank}.part").rename(Path(folder, str(rank)))
    time.sleep(20)


def die(told: list[Path]) -> None:
    """Close all connections as the kernel does for a dead process, then end once the others have spoken.

    If the process ended at once, the harness would end the others before they notice.
    """
    for name in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name.name)).st_mode):
                connection = socket.socket(fileno=os.dup(int(name.name)))
                # A socket that listens has no peer.
                connection.getpeername()
                connection.shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 15
    while not all(path.exists() for path in told) and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(7)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("wrap", [reduced, slow(hooked)])
def test_a_dead_rank_is_named(tmp_path, wrap):
    with pytest.raises(ChildProcessError, match="rank 1 of 3 died, exit code 7"):
        run_ranks_as_processes(3, dying, str(tmp_path), wrap)
    for rank in (0, 2):
        message = (tmp_path / str(rank)).read_text()
        assert f"rank {rank} waited in the all-reduce of bucket" in message
        assert "rank 1" in message.removeprefix(f"rank {rank}"), message


def dying_early(rank: int, folder: str) -> None:
    """Rank 1 dies before the hook of DistributedDataParallel opens its group; rank 0 writes down what it is told."""
    wrapped = DistributedDataParallel(made(sequential))
    wrapped.register_comm_hook(*hook(codec="efsign", timeout_s=2))
    if rank == 1:
        die([Path(folder, "0")])
    with pytest.raises(PeerError) as caught:
        step(wrapped, rank)
    Path(folder, "0.part").write_text(str(caught.value))
    Path(folder, "0.part").rename(Path(folder, "0"))
    time.sleep(20)


@pytest.mark.slow
@pytest.mark.dist
def test_a_rank_that_dies_before_the_first_step_of_a_hook_is_told_of(tmp_path):
    with pytest.raises(ChildProcessError, match="rank 1 of 2 died, exit code 7"):
        run_ranks_as_processes(2, dying_early, str(tmp_path))
    message = (tmp_path / "0").read_text()
    assert "rank 0 waited for ranks [0, 1] to open a group for compressed gradients: " in message
