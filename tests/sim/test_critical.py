"""Critical path and slack against the reference."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sim.reference import Node, arrays
from wirewise.sim.critical import critical_path, slack
from wirewise.sim.engine import run

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw, *, flows: bool):
    """Whole numbers without flows, so that many ops tie exactly; uneven ones with them."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, resources, interfaces = draw(st.integers(1, 40)), draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def seconds():
        return float(random.random() * 5) if flows else float(random.integers(0, 4))

    nodes = []
    for op in range(n):
        before = tuple(int(b) for b in np.flatnonzero(random.random(op) < 2.0 / (op + 1)))
        node = Node(seconds(), before, int(random.integers(-1, resources)), int(random.integers(0, 4)))
        node.gap = seconds() if random.random() < 0.3 else 0.0
        node.release = seconds() if random.random() < 0.3 else 0.0
        if flows and random.random() < 0.6:
            used = random.choice(interfaces, random.integers(1, interfaces + 1), replace=False)
            node.uses = {int(k): float(random.random() * 20 + 0.1) for k in used}
        nodes.append(node)
    slots = [int(s) for s in random.integers(1, 4, resources)]
    return nodes, slots, [float(c) for c in random.random(interfaces) * 9 + 1]


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
