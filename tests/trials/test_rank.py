"""Being a rank: as a thread with a transport, and as a process that main runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harness.threads import run_ranks_as_threads
from wirewise.runtime.transport import Transport
from wirewise.trials.rank import Rank


class Job(msgspec.Struct, frozen=True):
    values: list[int]
    timeout_s: float = 20.0


def work(rank: Rank[Job]) -> None:
    """Every rank gives its own value; rank 0 says which is the largest."""
    largest = rank.transport.slowest(rank.job.values[rank.transport.rank])
    chosen = rank.from_first({"largest": int(largest)}, dict[str, int])
    rank.log(f"the largest is {chosen['largest']}")
    rank.outcome(chosen)


def test_ranks_as_threads_share_an_outcome_and_speak_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(values=[3, 9, 4])

    def body(rank: int, group: Any, store: Any) -> None:
        work(Rank(job, tmp_path, Transport(group, timeout_s=job.timeout_s, store=store)))

    run_ranks_as_threads(3, body)
    assert json.loads((tmp_path / "outcome.json").read_text()) == {"largest": 9}
    assert capsys.readouterr().out == '{"wirewise":"log","text":"the largest is 9"}\n'
