"""Trainers that take turns."""

from __future__ import annotations

from typing import Any

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.full_graph.training import build_trainer, small_graph, split
from wirewise.runtime import full_graph as fg


def test_a_mode_that_is_behind_trains_first() -> None:
    parts = split(small_graph(), 1)

    def body(rank: int, group: Any, store: Any) -> tuple[list[Any], list[Any], dict[str, fg.ModeRun]]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainers = {name: build_trainer(parts[0], transport, "fp32") for name in ("ahead", "behind")}
        for _ in range(3):
            trainers["ahead"].train_epoch()
        before = fg.ModeRun(records=trainers["ahead"].records(), kernel_bytes=7)
        heard: list[Any] = []
        turns: list[Any] = []
        trained = fg.train_interleaved(
            trainers,
            5,
            turn=2,
            on_epoch=lambda name, record: heard.append((name, record.epoch)),
            interface_bytes=lambda: None,
            after_turn=lambda name, trainer, measured: turns.append(
                (name, trainer.epoch, len(measured.records))
            ),
            trained={"ahead": before},
        )
        for trainer in trainers.values():
            trainer.close()
        transport.close()
        return heard, turns, trained

    ((heard, turns, trained),) = run_ranks_as_threads(1, body)
    assert [name for name, _, _ in turns] == ["behind", "behind", "ahead", "behind"]
    assert turns == [("behind", 2, 2), ("behind", 4, 4), ("ahead", 5, 5), ("behind", 5, 5)]
    assert [epoch for name, epoch in heard if name == "ahead"] == [3, 4]
    assert [record.epoch for record in trained["ahead"].records] == [0, 1, 2, 3, 4]
    assert trained["ahead"].kernel_bytes == 7
    assert trained["ahead"].best[0] == trained["ahead"].records[-1].accuracy["validation"]
