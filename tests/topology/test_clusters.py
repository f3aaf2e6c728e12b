from __future__ import annotations

from collections import Counter

import pytest

from wirewise import topology
from wirewise.collective.network import network
from wirewise.errors import InputError, TopologyError
from wirewise.topology import Topology, cluster, preset


def switches(made: Topology) -> list[str]:
    return [switch.name for switch in made.switches if switch.host is None]


def between(made: Topology) -> dict[tuple[str, str], float]:
    """Rates of the links that join switches of the network."""
    own = set(switches(made))
    return {
        (link.source, link.target): link.bandwidth_bytes_per_s
        for link in made.links
        if {link.source, link.target} <= own
    }


def test_rails_join_the_same_ports_of_all_hosts() -> None:
    made = preset("dgx-h100x16@rails")
    assert made.name == "dgx-h100x16@rails" and len(made.ranks) == 128
    assert switches(made) == [*(f"leaf{n}" for n in range(8)), "spine"]
    ports = Counter(
        link.target for link in made.links if link.target.startswith("leaf") and link.source != "spine"
    )
    assert ports == {f"leaf{n}": 16 for n in range(8)}
    assert set(between(made).values()) == {16 * 50e9}
    joined = network(made)
    rails = {made.ranks.index(rank) % 8 for rank in ("gpu3", "gpu11")}
    assert rails == {3} and joined.rate(3, 11) == 50e9
    # The same rail is two links away, another one four.
    assert joined.latency(3, 11) < joined.latency(3, 12)


@pytest.mark.parametrize(("fabric", "share"), [("fat-tree", 1.0), ("fat-tree/2", 0.5), ("rails/4", 0.25)])
def test_oversubscribed_spines_have_their_share(fabric: str, share: float) -> None:
    made = preset(f"dgx-a100x8@{fabric}")
    ports = 64 * 25e9
    assert sum(between(made).values()) == pytest.approx(ports * share)


def test_groups_of_a_dragonfly_are_joined_pairwise() -> None:
    made = preset("dgx-h100x16@dragonfly")
    assert switches(made) == [f"leaf{n}" for n in range(4)] and len(between(made)) == 6
    # What a group could send is what its three cables carry.
    assert list(between(made).values()) == pytest.approx([4 * 8 * 50e9 / 3] * 6)


def test_a_smaller_group_of_a_dragonfly_narrows_its_own_cables_only() -> None:
    rates = between(preset("dgx-h100x9@dragonfly"))
    assert rates == {("leaf0", "leaf1"): 800e9, ("leaf0", "leaf2"): 200e9, ("leaf1", "leaf2"): 200e9}


def test_a_switch_is_what_there_was() -> None:
    assert preset("ndv2x4@switch") == preset("ndv2x4")
    # A port in each direction is one port.
    assert set(between(preset("ndv2x8@fat-tree")).values()) == {4 * 12.5e9}


def test_one_leaf_needs_no_spine() -> None:
    assert switches(preset("dgx-a100x4@fat-tree")) == ["leaf0"]


def test_many_of_ones_own_machine() -> None:
    made = cluster(preset("dgx-h100"), 3, "rails")
    assert made.name == "dgx-h100x3@rails" and len(made.ranks) == 24
    assert made.ranks[8] == "gpu0-1" and switches(made) == ["leaf0", "leaf1", "leaf2", "leaf3", "spine"]
    assert network(made).rate(0, 8) > 0
    assert topology.loads(topology.dumps(made)) == made


def test_a_file_tells_a_machine_and_how_many_there_are() -> None:
    text = topology.dumps(preset("dgx-a100"))
    made = topology.loads(f'{text}\n[cluster]\ncount = 16\nfabric = "fat-tree/2"\n')
    assert made.name == "dgx-a100" and len(made.hosts) == 16 and len(switches(made)) == 5


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("count = 0", "cluster: a cluster of 0 times"),
        ('count = "four"', r"cluster.count: expected `int`, got `str`"),
        ("count = 2\nhosts = 3", "cluster.hosts"),
        ('count = 2\nfabric = "torus"', "cluster: unknown fabric 'torus'; expected switch, or rails"),
    ],
)
def test_bad_clusters_are_named_with_their_line(table: str, words: str) -> None:
    text = f"{topology.dumps(preset('dgx-a100'))}\n[cluster]\n{table}\n"
    with pytest.raises(TopologyError, match=words) as refused:
        topology.loads(text)
    line = int(str(refused.value).split("line ")[1].split(":")[0])
    assert line > text[: text.index("[cluster]")].count("\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-h100x16@torus", "unknown fabric 'torus'"),
        ("dgx-h100x16@fat-tree/0.5", "from 1 on"),
        ("dgx-h100x16@switch/2", "unknown fabric 'switch/2'"),
        ("dgx-h100x1@rails", "0 switches outside"),
        ("dgx-h100x0@rails", "unknown topology 'dgx-h100x0@rails'"),
    ],
)
def test_bad_fabrics_are_refused(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        preset(name)


def test_hosts_that_are_several_are_no_machine() -> None:
    with pytest.raises(TopologyError, match="with 4 hosts and 1 switches"):
        cluster(preset("lab-4"), 2)
