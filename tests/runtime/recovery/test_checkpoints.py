"""The last resort: written behind the training, counted when all ranks have it, and with one before to fall back to."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
from wirewise.runtime.recovery import checkpoints as module
from wirewise.runtime.recovery.checkpoints import CheckpointFolder
from wirewise.runtime.state_files import write_state
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import digest_of


def state(step: int, rank: int = 0) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((300,), float(step)), "own": rank}


def on_ranks(world: int, body: Callable[[int, Transport], Any]) -> list[Any]:
    def rank_body(rank: int, group: Any, store: Any) -> Any:
        transport = Transport(group, timeout_s=20)
        try:
            return body(rank, transport)
        finally:
            transport.close()

    return run_ranks_as_threads(world, rank_body)


def save_all(folder: Path, steps: range, world: int = 2) -> None:
    def body(rank: int, transport: Transport) -> None:
        own = CheckpointFolder(folder, rank)
        for step in steps:
            own.save(step, state(step, rank))
            assert own.agree(transport, wait=True) == step
        own.close()

    on_ranks(world, body)


def loaded(folder: Path, world: int = 2) -> list[tuple[int, str]]:
    def body(rank: int, transport: Transport) -> tuple[int, str]:
        step, tree = CheckpointFolder(folder, rank).load(transport)
        return step, digest_of(tree)

    return on_ranks(world, body)


def test_the_newest_is_loaded_and_the_one_before_kept(tmp_path: Path) -> None:
    save_all(tmp_path, range(0, 50, 10))
    assert CheckpointFolder(tmp_path, 1).steps() == [30, 40]
    assert loaded(tmp_path) == [(40, digest_of(state(40, rank))) for rank in range(2)]


def test_training_goes_on_while_a_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()

    def slow(path: Path, tree: Any) -> None:
        assert may_write.wait(20)
        write_state(path, tree)

    monkeypatch.setattr(module, "write_state", slow)

    def body(rank: int, transport: Transport) -> list[int]:
        own, weights = CheckpointFolder(tmp_path, rank), state(3)
        own.save(3, weights)
        weights["weights"].fill_(99.0)  # the next update
        seen = [own.agree(transport)]
        transport.barrier("both have looked")
        may_write.set()
        return [*seen, own.agree(transport, wait=True)]

    assert on_ranks(2, body) == [[-1, 3], [-1, 3]]
    assert loaded(tmp_path) == [(3, digest_of(state(3)))] * 2


def test_nothing_counts_before_all_ranks_have_it(tmp_path: Path) -> None:
    save_all(tmp_path, range(10, 30, 10))

    def body(rank: int, transport: Transport) -> int:
        own = CheckpointFolder(tmp_path, rank)
        own.load(transport)
        if rank == 0:
            own.save(30, state(30))
        return own.agree(transport, wait=True)

    assert on_ranks(2, body) == [20, 20]
    assert CheckpointFolder(tmp_path, 0).steps() == [10, 20, 30]
    assert [step for step, _ in loaded(tmp_path)] == [20, 20]
    # What rank 0 has of step 30 must not complete one of another training from step 20.
    assert CheckpointFolder(tmp_path, 0).steps() == [10, 20]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_part_of_one_rank_takes_all_to_the_one_before(tmp_path: Path, damage: str) -> None:
    save_all(tmp_path, range(10, 30, 10))
    path = tmp_path / "step-20.rank-1.state"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 512 * 512])
    elif damage == "flip":
        content[-100] ^= 4
        path.write_bytes(content)
    else:
        path.unlink()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert loaded(tmp_path) == [(10, digest_of(state(10, rank))) for rank in range(2)]
    if damage != "gone":
        assert any("step 20 is damaged or missing on ranks [1]" in str(one.message) for one in told)


def test_none_is_left(tmp_path: Path) -> None:
    def body(rank: int, transport: Transport) -> None:
        with pytest.raises(InputError, match=r"no checkpoint is whole on all ranks: .*start anew"):
            CheckpointFolder(tmp_path, rank).load(transport)

    on_ranks(2, body)
    save_all(tmp_path, range(1))
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_ranks(2, body)


def test_what_no_file_can_hold_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a state holds a set"):
        CheckpointFolder(tmp_path, 0).save(0, {"a": {1}})


def test_a_full_disk_tells_what_would_be_lost_and_keeps_what_is_there(tmp_path: Path, monkeypatch) -> None:
    save_all(tmp_path, range(10, 20, 10), world=1)

    def full(path: Path, tree: Any) -> None:
        raise InputError(f"cannot write {path}: No space left on device")

    def body(rank: int, transport: Transport) -> None:
        own = CheckpointFolder(tmp_path, rank)
        own.load(transport)
        monkeypatch.setattr(module, "write_state", full)
        own.save(20, state(20))
        with pytest.warns(
            RuntimeWarning, match=r"step 20 is not written: .*No space.* on disk is of step 10"
        ):
            assert own.agree(transport, wait=True) == 10
        monkeypatch.setattr(module, "write_state", write_state)
        own.save(30, state(30))
        assert own.agree(transport, wait=True) == 30
        own.close()

    on_ranks(1, body)
    assert loaded(tmp_path, 1) == [(30, digest_of(state(30)))]


def test_a_kill_while_writing_leaves_the_one_before(tmp_path: Path) -> None:
    save_all(tmp_path, range(10, 20, 10), world=1)
    child = os.fork()
    if child == 0:
        try:
            os.replace = os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
            write_state(tmp_path / "step-20.rank-0.state", state(20))
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert loaded(tmp_path, 1) == [(10, digest_of(state(10)))]
