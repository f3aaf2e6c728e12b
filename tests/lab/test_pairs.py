"""Hosts linked in pairs: what the kernel shapes, and the topology both ways."""

import pytest

from tests.lab.test_network import measured, shaped
from wirewise.errors import InputError, LabError
from wirewise.lab import Lab, Pairs, pairs_of, topology_of
from wirewise.topology import Host, Link, Switch, Topology


@pytest.mark.slow
@pytest.mark.lab
def test_every_pair_has_its_rate_in_both_directions() -> None:
    pairs = {(0, 1): "200mbit", (2, 0): "50mbit"}
    with Lab(3, "20mbit", pairs=pairs) as lab:
        for (a, b), rate in {(0, 1): 25e6, (0, 2): 6.25e6, (1, 2): 2.5e6}.items():
            for receives, sends in ((a, b), (b, a)):
                found = measured(lab, int(rate / 5), receives=receives, sends=sends)
                assert found == shaped(rate), (receives, sends)


@pytest.mark.slow
@pytest.mark.lab
def test_pairs_change_and_slow_down_alone() -> None:
    with Lab(3, pairs={(0, 1): "20mbit"}, link="100mbit") as lab:
        lab.set_pair((1, 0), "50mbit")
        assert lab.rates == [18.75e6, 18.75e6, 25e6]
        assert measured(lab, 1_000_000, receives=0, sends=1) == shaped(6.25e6)
        lab.slow(2, 5)
        assert measured(lab, 500_000, receives=0, sends=2) == shaped(2.5e6)
        assert measured(lab, 500_000, receives=2, sends=1) == shaped(2.5e6)
        assert measured(lab, 1_000_000, receives=1, sends=0) == shaped(6.25e6)
        lab.heal(2)
        assert measured(lab, 2_000_000, receives=0, sends=2) == shaped(12.5e6)
        with pytest.raises(LabError, match="set_pair"):
            lab.set_link(0, "1gbit")


@pytest.mark.lab
def test_a_lab_without_pairs_has_none_to_change() -> None:
    with Lab(2, "50mbit") as lab, pytest.raises(LabError, match="with pairs"):
        lab.set_pair((0, 1), "1gbit")


def test_a_topology_of_pairs_reads_back() -> None:
    pairs = Pairs(4, "100mbit", {(0, 1): "1600mbit", (3, 2): "1600mbit", (0, 2): "400mbit"})
    topology = topology_of(pairs)
    assert pairs_of(topology).rates == pairs.rates
    assert pairs.rates[2, 3] == 2e8
    assert pairs.totals() == [2.625e8, 2.25e8, 2.625e8, 2.25e8]


def test_packets_are_short_on_the_slowest_link() -> None:
    pairs = Pairs(3, "25mbit", {(0, 1): "400mbit"})
    assert pairs.segment_bytes(0) == 16_667
    pairs.set((0, 1), "1200mbit")
    assert pairs.segment_bytes(1) == 50_000
    assert Pairs(2, "10gbit", {}).segment_bytes(0) == 65_536
    assert Pairs(2, "1mbit", {}).segment_bytes(0) == 3000


def test_what_is_not_linked_gets_a_narrow_way() -> None:
    hosts = tuple(Host(name=name) for name in "abc")
    links = tuple(
        Link(source=a, target=b, latency_s=0.0, bandwidth_bytes_per_s=1e6)
        for a, b in (("a", "b"), ("c", "b"))
    )
    rates = pairs_of(Topology(name="line", hosts=hosts, links=links)).rates
    assert rates == {(0, 1): 1e6, (0, 2): 125_000.0, (1, 2): 1e6}


def test_topologies_that_are_no_pairs_are_refused() -> None:
    hosts = (Host(name="a"), Host(name="b"))
    one = Link(source="a", target="b", latency_s=0.0, bandwidth_bytes_per_s=1e6, direction="one")
    with pytest.raises(LabError, match="goes one way"):
        pairs_of(Topology(name="t", hosts=hosts, links=(one,)))
    with pytest.raises(LabError, match="devices or switches"):
        pairs_of(Topology(name="t", hosts=hosts, switches=(Switch(name="s", kind="network"),)))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({(0, 2): "1gbit"}, "expected two different hosts"),
        ({(1, 1): "1gbit"}, "expected two different hosts"),
        ({(0, 1): "1gbit", (1, 0): "2gbit"}, "twice"),
        ({(0, 1): "1bit"}, "which is what the kernel can shape"),
        ({(0, 1): "fast"}, "not understood"),
    ],
)
def test_pairs_that_cannot_be_are_refused(pairs: dict[tuple[int, int], str], message: str) -> None:
    with pytest.raises((LabError, InputError), match=message):
        Lab(2, pairs=pairs)


def test_links_and_pairs_exclude_each_other() -> None:
    with pytest.raises(LabError, match="links and pairs"):
        Lab(2, links={0: "1gbit"}, pairs={})
