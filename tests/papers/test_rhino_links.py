"""Links that explain collectives of a lab."""

from __future__ import annotations

import pytest

from wirewise.cost.transfers import TransferSample
from wirewise.plans.parallel import MoveStep
from wirewise.sim.mesh_costs import MeshCosts
from wirewise_papers.rhino.links import fit_links


def test_links_take_the_start_and_the_burden_of_what_was_measured():
    rate, call_s, burden = 1e9 / 8 * 0.957, 2e-3, {"all_reduce": 1.0, "all_to_all": 1.5}
    samples = [
        TransferSample(0.0, call_s + size * by / rate, size, 1, kind, alone=True)
        for kind, by in burden.items()
        for size in (1e4, 1e6, 1e7)
    ]
    links = fit_links(("1gbit",) * 4, samples)
    assert links.burden == pytest.approx(burden, rel=0.01)
    assert links.call_s == pytest.approx(call_s, rel=0.01)
    costs = MeshCosts(links, [(0, 1, 2, 3)], (4,))
    step = MoveStep(kind="all_to_all", mesh_dim=0, size_bytes=4_000_000, sent_bytes=3_000_000)
    assert costs.seconds(step) == pytest.approx(call_s + 3e6 * 1.5 / rate, rel=0.01)
    # Between two ranks no messages meet.
    pairs = MeshCosts(links, [(0, 1, 2, 3)], (2, 2))
    step = MoveStep(kind="all_to_all", mesh_dim=1, size_bytes=4_000_000, sent_bytes=2_000_000)
    assert pairs.seconds(step) == pytest.approx(call_s + 2e6 / rate, rel=0.01)
