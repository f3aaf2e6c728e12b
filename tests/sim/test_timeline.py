"""Timelines."""

from __future__ import annotations

import pytest

from wirewise.sim import Span, Timeline


def span(rank, phase, start, end):
    return Span(rank=rank, phase=phase, exchange="forward1", start_s=start, end_s=end)


def test_sums_and_order():
    timeline = Timeline(
        spans=(span(0, "wire", 2.0, 5.0), span(0, "pack", 1.0, 2.0), span(1, "wire", 1.5, 2.5)), world_size=2
    )
    assert timeline.seconds == 4.0
    assert timeline.phase_s("wire", rank=0) == 3.0
    assert timeline.phase_s("wire") == pytest.approx(2.0)
    assert [s.phase for s in timeline.of(0)] == ["pack", "wire"]
    assert Timeline(spans=(), world_size=2).seconds == 0.0
