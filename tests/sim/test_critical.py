"""Critical path and slack against the reference."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from tests.sim.reference import arrays, graphs
from wirewise.sim.critical import critical_path, slack
from wirewise.sim.engine import run

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(graphs(flows=True))
def test_slack_and_critical_path(graph):
    ops, uses = arrays(*graph)
    out = run(ops, uses)
    free = slack(ops, out)
    assert free.min() >= -1e-9
    path = critical_path(out)
    assert out.end[path[-1]] == out.end.max()
    assert free[path] == pytest.approx(0.0, abs=1e-9)
    for before, op in pairwise(path):
        assert out.start[op] in (out.end[before], out.end[before] + ops.gap[before])
