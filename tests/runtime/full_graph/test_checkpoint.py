"""X9: a resumed training continues bit for bit, and damaged checkpoints are refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.full_graph.training import build_trainer, small_graph, split
from wirewise.errors import InputError
from wirewise.runtime import full_graph as fg
from wirewise.runtime.full_graph import checkpoint

EPOCHS = 5


@pytest.mark.parametrize("mode", ["fp32", "adaqp", "adaqp-paper", "random", "pipegcn", "bns", "sancus"])
def test_the_next_losses_are_identical(mode: str, tmp_path: Path) -> None:
    parts = split(small_graph(), 3)
    # An automatic plan depends on measured times, so none may fall due between the checkpoint and the
    # comparison.
    every = 20 if mode == "adaqp" else 4

    def body(rank: int, group: Any, store: Any) -> tuple[list[float], list[float]]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        first = build_trainer(parts[rank], transport, mode, replan_every=every)
        for _ in range(6):
            first.train_epoch()
        checkpoint.save(first, tmp_path)
        transport.all_reduce(torch.zeros(1), "all have saved")
        expected = [first.train_epoch() for _ in range(EPOCHS)]
        first.close()
        second = build_trainer(parts[rank], transport, mode, replan_every=every)
        epoch = checkpoint.latest(tmp_path, transport.world_size)
        assert epoch == 6
        checkpoint.load(second, tmp_path, epoch)
        resumed = [second.train_epoch() for _ in range(EPOCHS)]
        second.close()
        transport.close()
        return expected, resumed

    for expected, resumed in run_ranks_as_threads(3, body):
        assert resumed == expected


def test_damaged_or_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    parts = split(small_graph(), 1)

    def body(rank: int, group: Any, store: Any) -> None:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[0], transport, "fp32")
        trainer.train_epoch()
        path = checkpoint.save(trainer, tmp_path)
        other = build_trainer(parts[0], transport, "adaqp")
        with pytest.raises(InputError, match=r"'mode': 'fp32'.*expects.*'mode': 'adaqp'"):
            checkpoint.load(other, tmp_path, 1)
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(InputError, match="cannot read the checkpoint"):
            checkpoint.load(trainer, tmp_path, 1)
        with pytest.raises(InputError, match="cannot read the checkpoint"):
            checkpoint.load(trainer, tmp_path, 9)
        trainer.close()
        transport.close()

    run_ranks_as_threads(1, body)


def test_an_unwritable_folder_leaves_nothing(tmp_path: Path) -> None:
    parts = split(small_graph(), 1)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")

    def body(rank: int, group: Any, store: Any) -> None:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[0], transport, "fp32")
        with pytest.raises(InputError, match="cannot create the folder"):
            checkpoint.save(trainer, blocked)
        trainer.close()
        transport.close()

    run_ranks_as_threads(1, body)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_only_complete_epochs_count(tmp_path: Path) -> None:
    for epoch, ranks in ((1, 2), (2, 1)):
        folder = tmp_path / f"epoch-{epoch:06d}"
        folder.mkdir()
        for rank in range(ranks):
            (folder / f"rank-{rank}.pt").touch()
    assert checkpoint.latest(tmp_path, 2) == 1
    assert checkpoint.latest(tmp_path, 3) is None
