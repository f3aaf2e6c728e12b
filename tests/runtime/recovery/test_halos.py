"""A part of a graph that is lost is recomputed from what its neighbours sent it, as it was encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.harness.threads import _group, run_ranks_as_threads
from tests.harness.tiers import keep
from tests.runtime.full_graph.training import build_trainer, small_graph, split
from wirewise.errors import InputError
from wirewise.runtime import full_graph as fg
from wirewise.runtime.full_graph import checkpoint
from wirewise.runtime.recovery.logs import SenderLog
from wirewise.runtime.recovery.recompute import RecoveryJournal
from wirewise.runtime.transport import Transport

PARTS, SAVED, LOST, EPOCHS = 3, 2, 5, 7


class _Rank:
    """A rank that trains, saves, and goes on in another process group."""

    def __init__(self, parts: list[Any], mode: str, rank: int, store: Any, folder: Path) -> None:
        self.part, self.mode, self.rank, self.store, self.folder = parts[rank], mode, rank, store, folder
        self.log = SenderLog(folder / "logs", rank, chunk_steps=2)

    def start(self, generation: int, log: SenderLog) -> None:
        store = dist.PrefixStore(f"g{generation}", self.store)
        self.journal = RecoveryJournal(log, [self.folder / "logs"], self.store, generation=generation)
        transport = Transport(_group(store, self.rank, PARTS, 20.0), timeout_s=20.0)
        self.trainer = build_trainer(self.part, transport, self.mode, journal=self.journal)

    def train(self, until: int) -> list[float]:
        losses = []
        while self.trainer.epoch < until:
            losses.append(self.trainer.train_epoch())
            if self.trainer.epoch in (SAVED, LOST):
                self.trainer.exchange.drain()
                checkpoint.save(self.trainer, self.folder / f"states-{self.rank}")
        return losses

    def end(self) -> dict[str, torch.Tensor]:
        self.trainer.drain()
        self.trainer.close()
        self.trainer.transport.close()
        return {name: value.clone() for name, value in self.trainer.model.state_dict().items()}


def run(mode: str, folder: Path, dead: int | None) -> tuple[list[dict[str, torch.Tensor]], list[list[float]]]:
    parts = split(small_graph(), PARTS)

    def body(rank: int, group: Any, store: Any) -> Any:
        own = _Rank(parts, mode, rank, store, folder)
        own.start(1, own.log)
        own.trainer.begin()
        if dead is None:
            losses = own.train(EPOCHS)
        else:
            losses = own.train(LOST)
            own.end()
            log = own.log
            if rank == dead:
                log.close()
                log = SenderLog(folder / "logs", rank, chunk_steps=2)
            own.start(2, log)
            at = SAVED if rank == dead else LOST
            path = folder / f"states-{rank}"
            checkpoint.load(own.trainer, path, at)
            own.trainer.begin()
            again = own.train(EPOCHS)
            assert not own.journal.is_behind
            losses = losses[:at] + again
        return own.end(), losses

    found = run_ranks_as_threads(PARTS, body)
    return [state for state, _ in found], [losses for _, losses in found]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("mode", "dead"),
    keep(
        [("uniform-4", 1), ("pipegcn", 0)],
        [
            (mode, dead)
            for mode in ("fp32", "bf16", "uniform-4", "adaqp-p", "pipegcn", "bns")
            for dead in range(PARTS)
        ],
    ),
)
@pytest.mark.sample(7)
def test_a_lost_part_is_recomputed_bit_by_bit(mode: str, dead: int, tmp_path: Path) -> None:
    expected, losses = run(mode, tmp_path / "undisturbed", None)
    found, again = run(mode, tmp_path / "disturbed", dead)
    assert again == losses
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)


def test_logs_have_the_bytes_that_travelled(tmp_path: Path) -> None:
    run("uniform-4", tmp_path / "four", None)
    run("fp32", tmp_path / "full", None)
    four, full = (
        sum(path.stat().st_size for path in (tmp_path / name / "logs").rglob("to-rank-*/*.log"))
        for name in ("four", "full")
    )
    assert four < 0.6 * full


@pytest.mark.parametrize("mode", ["adaqp", "random", "sancus"])
def test_modes_that_decide_while_they_train_are_refused(mode: str, tmp_path: Path) -> None:
    part = split(small_graph(), 1)[0]

    def body(rank: int, group: Any, store: Any) -> None:
        journal = RecoveryJournal(SenderLog(tmp_path, 0), [tmp_path], store)
        with pytest.raises(InputError, match=f"mode {mode} decides on messages while it trains"):
            build_trainer(part, fg.Transport(group, store=store), mode, journal=journal)

    run_ranks_as_threads(1, body)
