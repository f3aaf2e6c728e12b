from __future__ import annotations

from collections import Counter

import networkx
import pytest

from wirewise.errors import TopologyError
from wirewise.topology import Topology, preset
from wirewise.topology.machines import MACHINES, ndv2, pairwise_hosts


def _graph(made: Topology) -> networkx.Graph:
    graph = networkx.Graph()
    for link in made.links:
        if link.kind == "nvlink":
            graph.add_edge(link.source, link.target, links=round(link.bandwidth_bytes_per_s / 25e9))
    return graph


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_machines_by_name(name: str, hosts: int) -> None:
    made = preset(f"{name}x{hosts}")
    assert made.name == f"{name}x{hosts}"
    assert len(made.hosts) == hosts and len(made.devices) % (8 * hosts) == 0
    assert any(s.kind == "network" for s in made.switches) == (hosts > 1)


def test_ndv2_is_the_dgx_1v_with_other_labels() -> None:
    same = networkx.algorithms.isomorphism.numerical_edge_match("links", 0)
    assert networkx.is_isomorphic(_graph(ndv2()), _graph(preset("dgx-1v")), edge_match=same)


def test_dgx_1p_has_one_link_for_each_pair_of_the_mesh() -> None:
    nvlinks = [link for link in preset("dgx-1p").links if link.kind == "nvlink"]
    assert {link.bandwidth_bytes_per_s for link in nvlinks} == {20e9}
    assert set(Counter(end for link in nvlinks for end in (link.source, link.target)).values()) == {4}


def test_dies_of_mi250_have_xgmi_links_of_50_gb() -> None:
    made = preset("mi250x1")
    total = Counter[str]()
    for link in made.links:
        assert link.kind == "xgmi"
        for end in (link.source, link.target):
            total[end] += round(link.bandwidth_bytes_per_s / 50e9)
    assert len(total) == 16 and set(total.values()) == {7}


def test_uneven_lab_networks() -> None:
    whole, quarter = preset("h4"), preset("h4-quarter")
    assert [link.bandwidth_bytes_per_s * 8 / 1e6 for link in whole.links] == [1600, 1600, 400, 100, 100, 100]
    for a, b in zip(whole.links, quarter.links, strict=True):
        assert a.bandwidth_bytes_per_s == 4 * b.bandwidth_bytes_per_s
    assert whole.ranks == ("host0", "host1", "host2", "host3")


def test_impossible_machines_are_named() -> None:
    with pytest.raises(TopologyError, match="got 0 hosts"):
        ndv2(0)
    with pytest.raises(TopologyError, match="hosts: got no host"):
        pairwise_hosts("none", {})
    with pytest.raises(TopologyError, match="such as ndv2x2"):
        preset("ndv2x0")
