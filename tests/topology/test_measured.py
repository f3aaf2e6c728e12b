"""Topologies from measured pairs: the simplest network that explains the figures."""

from __future__ import annotations

import numpy as np
import pytest

from wirewise.collective import network
from wirewise.errors import TopologyError
from wirewise.topology import dumps, from_pairs, link_between, loads, path_between

NAMES = ["a", "b", "c", "d"]
WAIT = np.full((4, 4), 1e-4)


def made(rate, leaving, arriving):
    found = from_pairs("m", NAMES, rate=rate, latency_s=WAIT, leaving=leaving, arriving=arriving)
    assert loads(dumps(found)) == found
    return found


def test_pairs_that_do_not_slow_each_other_get_direct_links():
    rate = np.array([[1, 200, 50, 13], [200, 1, 13, 13], [50, 13, 1, 200], [13, 13, 200, 1]]) * 1e6
    off = rate - np.diag(np.diag(rate))
    found = made(rate, off.sum(1) * 0.95, off.sum(0) * 0.97)
    assert not found.switches and len(found.links) == 6
    for a in range(4):
        for b in range(4):
            if a != b:
                assert link_between(found, NAMES[a], NAMES[b]).bandwidth_bytes_per_s == rate[a, b]
    assert found.links[0].latency_s == 1e-4


def test_ports_that_bind_become_a_switch():
    port = np.array([100, 100, 50, 25]) * 1e6
    found = made(np.minimum.outer(port, port), port, port)
    assert [s.name for s in found.switches] == ["network"]
    assert {link.source: link.bandwidth_bytes_per_s for link in found.links} == dict(
        zip(NAMES, port, strict=True)
    )
    assert path_between(found, "a", "b").latency_s == pytest.approx(1e-4)


def test_pairs_and_ports_that_both_bind_are_both_kept():
    rate = np.full((4, 4), 50e6)
    rate[0, 1] = rate[1, 0] = 10e6
    found = made(rate, np.full(4, 50e6), np.full(4, 50e6))
    assert len(found.switches) == 8
    seen = network(found)
    assert seen.rate(0, 1) == 10e6
    assert seen.rate(0, 2) == 50e6


def test_directions_that_differ_are_two_links():
    found = from_pairs(
        "m",
        ["a", "b"],
        rate=[[1, 10e6], [40e6, 1]],
        latency_s=WAIT[:2, :2],
        leaving=[10e6, 40e6],
        arriving=[40e6, 10e6],
    )
    assert [(x.source, x.target, x.bandwidth_bytes_per_s) for x in found.links] == [
        ("a", "b", 10e6),
        ("b", "a", 40e6),
    ]


def test_rates_that_cannot_be_are_refused():
    with pytest.raises(TopologyError, match="not above 0"):
        made(np.zeros((4, 4)), np.ones(4), np.ones(4))
    with pytest.raises(TopologyError, match="shapes"):
        made(np.ones((3, 3)), np.ones(4), np.ones(4))
