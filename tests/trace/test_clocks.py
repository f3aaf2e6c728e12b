"""What is known of the clocks of an aligned trace."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trace.synthetic import make, shifted
from wirewise.errors import TraceError
from wirewise.trace import align, clock_quality, load, write_trace


def test_clocks_hours_apart_that_nothing_ties_are_refused(tmp_path):
    run = make(ranks=2, steps=4)
    for rank in run.true.ranks:
        rank.ops = [op for op in rank.ops if op.kind not in ("communication", "wait")]
    apart = shifted(run.true, np.array([0.0, 3 * 3600.0]), np.zeros(2))
    write_trace(apart, tmp_path)
    with pytest.raises(TraceError, match=r"begins 3.0 hours later on rank 1 than on rank 0.*set the clocks"):
        load([tmp_path])


def test_the_uncertainty_holds_the_error():
    run = make(ranks=4, clock_s=5.0, drift=1e-5, probes=10)
    trace = align(run.seen)
    wrong = []
    for rank, quality in enumerate(clock_quality(trace)):
        seen, true = run.seen.ranks[rank].ops, trace.ranks[rank].ops
        at = np.array([op.end_s for op in seen])
        wrong.append(np.abs(np.array([op.end_s for op in true]) - run.common(rank, at)).max())
        assert wrong[-1] <= quality.uncertainty_s < 1e-3
        assert 0.0 < quality.spread_s < 1e-3
    assert max(wrong) > 0.0


def test_nothing_is_known_of_a_clock_that_nothing_ties():
    (alone,) = clock_quality(align(make(ranks=1).seen))
    assert (alone.spread_s, alone.uncertainty_s) == (None, None)
