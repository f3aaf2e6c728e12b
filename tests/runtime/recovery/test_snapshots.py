"""What a rank alone has outlives its process, is whole after a kill in its midst, and may outlive its host."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
from wirewise.runtime.recovery import snapshots as module
from wirewise.runtime.recovery.snapshots import Snapshots, agree_on_step, mirror, write_snapshot
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import digest_of


def state(step: int, size: int = 100) -> dict[str, Any]:
    return {"step": step, "residual": torch.full((size,), float(step)), "none": torch.empty(0)}


def test_the_last_two_steps_are_there_for_another_process(tmp_path: Path) -> None:
    own = Snapshots(tmp_path, 3)
    assert own.steps == ()
    for step in range(5):
        own.write(step, state(step, 100 if step < 3 else 5000))
    other = Snapshots(tmp_path, 3)
    assert other.steps == own.steps == (3, 4)
    for step in (3, 4):
        assert digest_of(other.read(step)) == digest_of(state(step, 5000))
    with pytest.raises(InputError, match=r"holds the steps \[3, 4\]; expected step 2"):
        other.read(2)
    # The process that took the place goes on, in the memory that is there.
    other.write(5, state(5))
    assert Snapshots(tmp_path, 3).steps == (4, 5) and digest_of(other.read(5)) == digest_of(state(5))
    other.remove()
    assert not tmp_path.exists()


def test_steps_computed_anew_replace_those_of_before(tmp_path: Path) -> None:
    own = Snapshots(tmp_path, 0)
    for step in (8, 9):
        own.write(step, state(step))
    own.write(9, state(9, 50))
    assert own.steps == (8, 9) and own.read(9)["residual"].numel() == 50
    own.write(3, state(3))  # after a checkpoint
    assert own.steps == (3,)
    own.write(4, state(4))
    assert own.steps == (3, 4)


def killed_in_write(folder: Path, at: str) -> int:
    """A process that dies while it writes step 2, with steps 0 and 1 there; its exit status."""
    child = os.fork()
    if child == 0:
        own = Snapshots(folder, 0)
        own.write(0, state(0))
        own.write(1, state(1))
        if at == "tensors":
            torch.Tensor.copy_ = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        else:
            module.struct = None  # the last write
        try:
            own.write(2, state(2))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("at", ["tensors", "step"])
def test_a_kill_within_a_write_leaves_the_step_before(tmp_path: Path, at: str) -> None:
    assert killed_in_write(tmp_path, at) == signal.SIGKILL
    assert Snapshots(tmp_path, 0).steps == (1,)
    assert digest_of(Snapshots(tmp_path, 0).read(1)) == digest_of(state(1))


def test_damaged_slots_are_refused(tmp_path: Path) -> None:
    own = Snapshots(tmp_path, 0)
    own.write(0, state(0))
    path = tmp_path / "rank-0.0"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[200] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="is damaged"):
        Snapshots(tmp_path, 0).read(0)
    path.write_bytes(whole[:300])
    with pytest.raises(InputError, match="is cut off"):
        Snapshots(tmp_path, 0).read(0)
    path.write_bytes(struct.pack("<q", 5))
    assert Snapshots(tmp_path, 0).steps == ()


def test_full_memory_keeps_the_newer_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Snapshots(tmp_path, 0)
    own.write(0, state(0))
    own.write(1, state(1))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"cannot keep \d+ bytes .*No space left on device"):
        own.write(2, state(2, 100_000))
    assert own.steps == (1,) and digest_of(own.read(1)) == digest_of(state(1))


def pair(folder: Path, rank: int, world: int) -> tuple[Snapshots, Snapshots]:
    """Snapshots of a rank and of the one before it, in the memory of its host."""
    host = folder / f"host-{rank}"
    return Snapshots(host, rank), Snapshots(host, (rank - 1) % world)


def on_ranks(world: int, folder: Path, body: Any) -> list[Any]:
    def rank_body(rank: int, group: Any, store: Any) -> Any:
        transport = Transport(group, timeout_s=20)
        try:
            return body(rank, transport, *pair(folder, rank, world))
        finally:
            transport.close()

    return run_ranks_as_threads(world, rank_body)


@pytest.mark.parametrize("world", [2, 3])
def test_a_mirror_outlives_the_host(tmp_path: Path, world: int) -> None:
    def train(rank: int, transport: Transport, own: Snapshots, others: Snapshots) -> str:
        for step in range(3):
            write_snapshot(own, step, state(step, 50 + rank), transport)
            mirror(own, others, step, transport)
        return digest_of(own.read(2))

    digests = on_ranks(world, tmp_path, train)
    for file in (tmp_path / "host-1").iterdir():
        file.unlink()

    def go_on(rank: int, transport: Transport, own: Snapshots, others: Snapshots) -> tuple[int, str]:
        step = agree_on_step(own, transport, others)
        return step, digest_of(own.read(step))

    assert on_ranks(world, tmp_path, go_on) == [(2, digest) for digest in digests]


def test_ranks_agree_on_the_newest_step_that_all_have(tmp_path: Path) -> None:
    def body(rank: int, transport: Transport, own: Snapshots, others: Snapshots) -> list[int]:
        seen = [agree_on_step(own, transport)]
        for step in range(4):
            write_snapshot(own, step, state(step), transport)
        if rank == 1:
            own.write(4, state(4))
        return [*seen, agree_on_step(own, transport)]

    assert on_ranks(3, tmp_path, body) == [[-1, 3]] * 3


def test_a_rank_without_any_state_is_named(tmp_path: Path) -> None:
    def body(rank: int, transport: Transport, own: Snapshots, others: Snapshots) -> None:
        if rank != 1:
            own.write(3, state(3))
        with pytest.raises(InputError, match=r"ranks \[1\] none, nor has the rank after them a mirror"):
            agree_on_step(own, transport, others)

    on_ranks(3, tmp_path, body)
