"""Unequal machines survive a file, and their links and devices are what was asked for."""

import pytest

from wirewise import topology
from wirewise.cost import Links
from wirewise.errors import TopologyError
from wirewise.topology import UnequalHost, random_unequal, unequal_hosts


def test_speeds_memory_and_rates_are_kept():
    made = unequal_hosts([UnequalHost(2, "old", 0.5, 1e8, 4e9), UnequalHost(1, "new", 2.0, 5e8)])
    assert topology.loads(topology.dumps(made)) == made
    assert [(d.host, d.type, d.speed, d.memory_bytes) for d in made.devices] == [
        ("host0", "old", 0.5, 4e9),
        ("host0", "old", 0.5, 4e9),
        ("host1", "new", 2.0, 0.0),
    ]
    links = Links.of(made)
    assert links.bandwidth_out_bytes_per_s.tolist() == [1e8, 5e8]
    assert links.latency_s[0, 1] == pytest.approx(5e-5)


def test_what_is_drawn_depends_on_its_seed():
    drawn = [random_unequal(seed) for seed in range(30)]
    assert drawn[0] == random_unequal(0) != drawn[1]
    assert {len(one.hosts) for one in drawn} == {2, 3, 4}
    assert len(random_unequal(1, hosts=7, most_devices=1).devices) == 7


def test_a_device_without_speed_is_refused():
    with pytest.raises(TopologyError, match=r"devices\[0\].speed: got 0.0"):
        unequal_hosts([UnequalHost(1, "old", 0.0, 1e8)])
