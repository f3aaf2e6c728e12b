"""Lanes: both ends have the same tables, and messages hold numbers."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.full_graph.training import small_graph, split, train
from wirewise.errors import CodecError, PeerError
from wirewise.runtime import full_graph as fg


def test_different_tables_are_noticed() -> None:
    def spoil(trainer: fg.Trainer) -> str:
        lane = trainer.exchange.lanes["forward1"]
        if trainer.transport.rank == 0:
            lane.send_bits[1][0] = 2
        with pytest.raises(PeerError) if trainer.transport.rank == 1 else _nothing() as caught:
            fg.check_tables({"forward1": lane}, trainer.transport)
        return str(caught.value) if caught is not None else ""

    run = train(split(small_graph(), 2), "uniform-8", epochs=1, after=spoil)
    assert "different bit tables for forward1" in run.extra[1]


class _nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@pytest.mark.slow
def test_not_a_number_in_a_message_is_named() -> None:
    def spoil(trainer: fg.Trainer) -> None:
        with torch.no_grad():
            trainer.model.convolutions[0].weight[0, 0] = float("nan")
        with pytest.raises(CodecError, match=r"message \d+ \(global row \d+, 8 bit\) holds nan in column"):
            trainer.train_epoch()

    train(split(small_graph(), 2), "uniform-8", epochs=1, after=spoil, norm=False)
