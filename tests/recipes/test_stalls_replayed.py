"""What a replay gains without communication is what was exposed of it."""

import pytest

from tests.trace.synthetic import make
from wirewise.recipes.stalls import counterfactuals
from wirewise.trace import align


def test_gains_of_a_trace_without_data_ops():
    trace = align(make(2, steps=12, jitter=0.0, lag_s=0.0).seen)
    gains = counterfactuals(trace)
    assert set(gains) == {"no_communication"}
    gain = gains["no_communication"]
    assert gain.ci95_s[0] <= gain.mean_s <= gain.ci95_s[1]
    # Nothing hides the last bucket: 2 MB at 250 MB/s.
    assert gain.mean_s == pytest.approx(0.008, abs=2e-4)
