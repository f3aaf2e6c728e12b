"""The clock of a host that is known to be ahead is put on the common one."""

from __future__ import annotations

import time

from wirewise.runtime.recovery.clock import CLOCK_AHEAD, clock_s


def test_seconds_ahead_are_taken_off(monkeypatch):
    monkeypatch.delenv(CLOCK_AHEAD, raising=False)
    before_s = time.time()
    assert before_s <= clock_s() <= time.time()
    monkeypatch.setenv(CLOCK_AHEAD, "500.0")
    assert clock_s() <= before_s - 400.0
