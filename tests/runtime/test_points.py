"""Named points, and the faults of the environment that are carried out at them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from wirewise.runtime import points


@pytest.fixture(autouse=True)
def nobody_listens():
    yield
    points.listen(None)


def test_a_listener_hears_every_point_with_its_index():
    heard = []
    points.notify_point("bucket", 1)
    points.listen(lambda point, index: heard.append((point, index)))
    points.notify_point("bucket", 3)
    points.notify_point("commit")
    assert heard == [("bucket", 3), ("commit", 0)]


def test_a_fault_is_carried_out_once_at_its_rank_step_and_index(tmp_path, monkeypatch):
    claim = tmp_path / "claim"
    fault = {"act": "kill", "rank": 2, "point": "bucket", "index": 3, "step": 7, "claim": str(claim)}
    monkeypatch.setenv(points.FAULTS, json.dumps([fault]))
    sent: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", sent.append)
    points.announce_position(2, 6)
    points.notify_point("bucket", 3)
    points.announce_position(2, 7)
    points.notify_point("bucket", 2)
    points.notify_point("commit", 3)
    assert not claim.exists()
    points.notify_point("bucket", 3)
    points.notify_point("bucket", 3)
    assert sent == [signal.SIGKILL]
    when, rank, pid = Path(claim).read_text().split()
    assert float(when) > 0 and rank == "2" and int(pid) == os.getpid()
