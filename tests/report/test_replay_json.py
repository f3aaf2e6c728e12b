"""A replayed trace as `--json` writes it."""

from __future__ import annotations

from tests.trace.synthetic import make
from wirewise.report.replay_json import analysis_object
from wirewise.sim.analysis import analyse
from wirewise.trace import align


def test_the_object_is_the_page_in_numbers():
    trace = align(make(ranks=4, steps=6, slowdown={2: 1.6}, clock_s=1.0).seen)
    found = analyse(trace)
    written = analysis_object(trace, found)
    assert written["straggler_rank"] == 2
    assert len(written["per_rank"]) == 4
    assert written["per_rank"][2]["compute_s"] == found.compute_s[2]
    assert written["link_sensitivity"][0]["host"] == -1
