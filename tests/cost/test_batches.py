"""Bytes and seconds of epochs of mini-batches, by hand."""

from __future__ import annotations

import pytest

from wirewise.cost import TCP_PAYLOAD
from wirewise.cost.batches import epoch_bytes, shared_link_s


def test_bytes_of_an_epoch_by_hand() -> None:
    # 10 rows in each of 2.5 batches and 20 rows in each of 2, of 64 bytes and an id; 2 messages with 3 counts each.
    sent = epoch_bytes([10.0, 20.0], [2.5, 2.0], row_bytes=64, batches=3)
    assert sent == 65 * 68 + 2 * (8 + 4 * 3)


def test_one_rank_sends_nothing() -> None:
    assert epoch_bytes([0.0], [4.0], row_bytes=64, batches=4) == 0


def test_ranks_of_a_host_share_its_link() -> None:
    assert shared_link_s(1e6, 1e6, 2) == pytest.approx(2 / TCP_PAYLOAD)
