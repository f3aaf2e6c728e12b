"""Timelines: spans, classes of ranks, and what is drawn of them."""

from __future__ import annotations

import pytest

from wirewise.sim import Span, Timeline
from wirewise.sim.timeline import rank_classes


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


def test_ranks_that_do_the_same_have_the_spans_of_the_first():
    classes = rank_classes(["a", "b", "a"])
    assert classes == ((0, 2), (1,))
    spans = (span(0, "wire", 2.0, 5.0), span(0, "pack", 1.0, 2.0), span(1, "wire", 1.5, 2.5))
    timeline = Timeline(spans=spans, world_size=3, classes=classes)
    assert timeline.phase_s("wire") == pytest.approx(7.0 / 3)
    assert timeline.phase_s("wire", rank=2) == 3.0
    assert [(s.rank, s.phase) for s in timeline.of(2)] == [(2, "pack"), (2, "wire")]
