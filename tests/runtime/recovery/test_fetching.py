"""Logs that come from other hosts are those that the senders wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
from wirewise.runtime.recovery import fetching
from wirewise.runtime.recovery.fetching import fetch_logs
from wirewise.runtime.recovery.logs import ALL_RANKS, LoggedMessages, MessageKey, SenderLog
from wirewise.runtime.transport import Transport


def written(folder: Path, rank: int, ranks: int) -> SenderLog:
    """A log of three steps: a message to each other rank, and what all came to."""
    log = SenderLog(folder / f"host-{rank}", rank, chunk_steps=2)
    for step in range(3):
        for peer in range(ranks):
            if peer != rank:
                log.append(MessageKey(rank, peer, 0, step), torch.full((4,), 100.0 * rank + step))
        log.append(MessageKey(rank, ALL_RANKS, 1, step), torch.tensor([step]))
        log.commit(step + 1)
    return log


def test_a_rank_that_is_behind_gets_the_logs_of_all_others(tmp_path: Path) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        log, transport = written(tmp_path, rank, 3), Transport(group, timeout_s=30, store=store)
        fetched = tmp_path / f"fetched-{rank}"
        for _ in range(2):
            fetch_logs(log, fetched, transport, [1])
        log.close()
        transport.close()

    run_ranks_as_threads(3, body)
    assert not (tmp_path / "fetched-0").exists() and not (tmp_path / "fetched-2").exists()
    past = LoggedMessages([tmp_path / "fetched-1"], 1)
    for source in (0, 2):
        assert past.span(source) == (0, 3)
        for step in range(3):
            message, _ = past.take(MessageKey(source, 1, 0, step))
            assert message.tolist() == [100.0 * source + step] * 4
    assert past.read_agreed(1, 2).tolist() == [2]


def test_names_that_no_log_has_are_refused(tmp_path: Path) -> None:
    frame, _ = fetching.pack({"../watermark": torch.zeros(1, dtype=torch.uint8)})
    with pytest.raises(InputError, match="got a log named"):
        fetching._write(tmp_path / "rank-0", frame, torch.zeros(1, dtype=torch.uint8))
    assert not (tmp_path / "watermark").exists()
