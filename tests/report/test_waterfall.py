"""One step of all ranks as a picture."""

from __future__ import annotations

import re

from tests.trace.synthetic import make
from wirewise.report.waterfall import shown_ranks, waterfall
from wirewise.trace import Op


def test_many_ranks_are_thinned_and_the_straggler_is_kept():
    trace = make(ranks=40, steps=2).true
    ranks = shown_ranks(trace, 17)
    assert {0, 17, 39} <= set(ranks)
    assert len(ranks) <= 17


def test_ops_are_drawn_without_the_ops_inside_them():
    trace = make(ranks=1, steps=1).true
    ops = trace.ranks[0].ops
    begin, end = min(op.start_s for op in ops), max(op.end_s for op in ops)
    alone = waterfall(trace, 0, set(), [0])
    ops.append(Op(name="script", kind="other", start_s=begin, end_s=end, step=0))
    chart = waterfall(trace, 0, set(), [0])
    high = re.compile(r'height="([\d.]+)" class="p-central')
    assert set(high.findall(chart)) == set(high.findall(alone))
    assert "p-other" in chart
    assert "p-other" not in alone


def test_many_short_ops_are_drawn_as_few():
    trace = make(ranks=1, steps=1).true
    trace.ranks[0].ops += [
        Op(name="short", kind="other", start_s=100 + 1e-6 * i, end_s=100 + 1e-6 * i + 5e-7, step=0)
        for i in range(5000)
    ]
    chart = waterfall(trace, 0, set(), [0])
    assert chart.count("<rect") < 400
    assert re.search(r"rank 0, other: \d+ short pieces from short on", chart)
