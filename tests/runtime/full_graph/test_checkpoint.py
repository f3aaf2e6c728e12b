"""X9: a resumed training continues bit for bit, and damaged checkpoints are refused with a reason."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.full_graph.training import build_trainer, on_slow_links, small_graph, split
from wirewise.errors import InputError
from wirewise.runtime import full_graph as fg
from wirewise.runtime import state_files
from wirewise.runtime.full_graph import checkpoint
from wirewise.runtime.state_files import read_state, write_state

EPOCHS = 5


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("mode", ["fp32", "adaqp", "adaqp-paper", "random", "pipegcn", "bns", "sancus"])
def test_the_next_losses_are_identical(mode: str, tmp_path: Path) -> None:
    parts = split(small_graph(), 3)
    # An automatic plan depends on measured times, so none may fall due between the checkpoint and the
    # comparison.
    every = {"adaqp": 20, "adaqp-paper": 5}.get(mode, 4)

    def build(part: Any, transport: fg.Transport) -> fg.Trainer:
        trainer = build_trainer(part, transport, mode, replan_every=every)
        if mode == "adaqp-paper":
            # Its plan is due in the first epoch after the checkpoint.
            on_slow_links(trainer)
        return trainer

    def body(rank: int, group: Any, store: Any) -> tuple[list[float], list[float]]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        first = build(parts[rank], transport)
        for _ in range(6):
            first.train_epoch()
        checkpoint.save(first, tmp_path)
        transport.all_reduce(torch.zeros(1), "all have saved")
        expected = [first.train_epoch() for _ in range(EPOCHS)]
        first.close()
        second = build(parts[rank], transport)
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


class Harmful:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def framed(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """What `pack` refuses, as a frame that holds everything."""
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue(), []


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, proof = split(small_graph(), 1), tmp_path / "it ran"

    def body(rank: int, group: Any, store: Any) -> None:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[0], transport, "fp32")
        path = checkpoint.save(trainer, tmp_path)
        state = read_state(path)
        with monkeypatch.context() as patched:
            patched.setattr(state_files, "pack", framed)
            write_state(path, state | {"bits": Harmful(proof)})
        with pytest.raises(
            InputError, match=r"rank-0\.pt.* would run code .*expected tensors, numbers and texts"
        ):
            checkpoint.load(trainer, tmp_path, 0)
        assert not proof.exists()
        # The same frame as it would have been read: the check above is not blind.
        torch.load(io.BytesIO(framed({"bits": Harmful(proof)})[0]), weights_only=False)
        assert proof.exists()
        for damaged, message in (
            ([1, 2], "it holds a list"),
            (state | {"lanes": None}, "does not fit this job"),
            (state | {"bits": {"record of wirewise": "Popen", "fields": {}}}, "holds a record 'Popen'"),
            (
                state | {"bits": {"record of wirewise": "LinkCost", "fields": {}}},
                "record LinkCost does not fit",
            ),
        ):
            write_state(path, damaged)
            with pytest.raises(InputError, match=message):
                checkpoint.load(trainer, tmp_path, 0)
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


def test_a_checkpoint_of_other_ranks_is_not_complete(tmp_path: Path) -> None:
    folder = tmp_path / "epoch-000003"
    folder.mkdir()
    for name in ("rank-0.pt", "rank-1.pt", "rank-2.pt", ".rank-3.pt.77.tmp", "rank-x.pt"):
        (folder / name).touch()
    assert checkpoint.ranks_by_epoch(tmp_path) == {3: {0, 1, 2}}
    assert checkpoint.latest(tmp_path, 3) == 3
    assert checkpoint.latest(tmp_path, 2) is None


def test_old_checkpoints_go_when_a_new_one_is_complete(tmp_path: Path) -> None:
    parts = split(small_graph(), 2)

    def body(rank: int, group: Any, store: Any) -> tuple[list[int], dict[str, Any]]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[rank], transport, "fp32")
        newest = []
        for epoch in range(1, 5):
            trainer.train_epoch()
            checkpoint.save(trainer, tmp_path, extra={"epochs": epoch})
            checkpoint.prune(trainer, tmp_path)
            newest.append(checkpoint.latest(tmp_path, 2))
        transport.all_reduce(torch.zeros(1), "all have removed theirs")
        extra = checkpoint.load(trainer, tmp_path, 3)
        trainer.close()
        transport.close()
        return newest, extra

    for newest, extra in run_ranks_as_threads(2, body):
        assert newest == [1, 2, 3, 4]
        assert extra == {"epochs": 3}
    assert checkpoint.ranks_by_epoch(tmp_path) == {3: {0, 1}, 4: {0, 1}}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch-000003", "epoch-000004"]
    checkpoint.discard(tmp_path, after=3)
    assert [p.name for p in tmp_path.iterdir()] == ["epoch-000003"]


def test_other_parts_are_refused(tmp_path: Path) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainers = [build_trainer(split(small_graph(seed=s), 1)[0], transport, "fp32") for s in (5, 6)]
        checkpoint.save(trainers[0], tmp_path)
        with pytest.raises(InputError, match=r"'parts': .*expects.*'parts': "):
            checkpoint.load(trainers[1], tmp_path, 0)
        for trainer in trainers:
            trainer.close()
        transport.close()

    run_ranks_as_threads(1, body)


def test_the_next_plan_starts_from_the_same_measurements(tmp_path: Path) -> None:
    """Costs, predictions and arrivals come back, so that a link which changed is seen after the resume too."""
    parts = split(small_graph(), 2)

    def body(rank: int, group: Any, store: Any) -> tuple[Any, ...]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        first = build_trainer(parts[rank], transport, "adaqp", replan_every=4)
        for _ in range(7):
            first.train_epoch()
        checkpoint.save(first, tmp_path)
        second = build_trainer(parts[rank], transport, "adaqp", replan_every=4)
        checkpoint.load(second, tmp_path, 7)
        assert first.bits.costs is not None
        links = first.bits.costs.links
        fitted = [t.bits._refitted(links, t.exchange.training_lanes()) for t in (first, second)]
        plans = [t.bits.current_plan() for t in (first, second)]
        # The decision at epoch 8 is made anew.
        later = [second.train_epoch() for _ in range(3)]
        first.close()
        second.close()
        transport.close()
        return links, fitted, plans, later

    for links, (expected, found), plans, later in run_ranks_as_threads(2, body):
        assert np.array_equal(found.pairs.latency_s, expected.pairs.latency_s)
        assert np.array_equal(found.pairs.s_per_byte, expected.pairs.s_per_byte)
        assert not np.array_equal(found.pairs.s_per_byte, links.pairs.s_per_byte)
        assert plans[1].predicted_s == plans[0].predicted_s != {}
        assert np.isfinite(later).all()
