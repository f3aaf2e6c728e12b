"""Rings of programs and networks, and the file that gives them to NCCL."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from tests.collective.exporters.programs import doubling, ring
from wirewise import topology
from wirewise.collective import Program, Transfer, network
from wirewise.collective.builders import build
from wirewise.collective.exporters import nccl_graph
from wirewise.collective.exporters.rings import Ring, pack_rings, rings_of
from wirewise.errors import ProgramError, TopologyError


def test_the_ring_of_a_program():
    for collective in ("all_gather", "reduce_scatter", "all_reduce"):
        assert [r.order for r in rings_of(ring(collective, 5))] == [(0, 1, 2, 3, 4)]
        assert len(rings_of(build(collective, "ring", 6))) == 1


def test_two_rings_in_one_program():
    transfers = [Transfer(2 * c, (c + k) % 3, (c + k + 1) % 3, k) for k in range(2) for c in range(3)]
    transfers += [Transfer(2 * c + 1, (c - k) % 3, (c - k - 1) % 3, k) for k in range(2) for c in range(3)]
    both = Program(name="both", collective="all_gather", ranks=3, chunks=6, transfers=tuple(transfers))
    assert {r.order for r in rings_of(both)} == {(0, 1, 2), (0, 2, 1)}


@pytest.mark.parametrize(
    "program",
    [
        doubling(4),
        build("broadcast", "binomial", 6),
        Program(name="none", collective="all_gather", ranks=2, chunks=2, transfers=()),
    ],
)
def test_programs_without_a_ring_are_refused(program):
    with pytest.raises(ProgramError, match="is no ring"):
        rings_of(program)


@pytest.mark.parametrize(("name", "total"), [("dgx-1v", 150e9), ("dgx-2", 150e9)])
def test_rings_fit_their_network_and_reach_its_rate(name, total):
    found = network(topology.preset(name), kinds={"nvlink"})
    rings = pack_rings(found)
    assert sum(r.bandwidth_bytes_per_s for r in rings) == pytest.approx(total)
    load: Counter[int] = Counter()
    for one in rings:
        assert sorted(one.order) == list(range(found.ranks))
        for s, t in zip(one.order, (*one.order[1:], one.order[0]), strict=True):
            for edge, fraction in found.route(s, t):
                load[edge] += fraction * one.bandwidth_bytes_per_s
    assert all(load[e] <= edge.bandwidth_bytes_per_s * (1 + 1e-9) for e, edge in enumerate(found.edges))


def test_networks_without_a_ring_are_refused():
    star = topology.loads(
        'name = "line"\n'
        + "".join(f'[[hosts]]\nname = "h{i}"\n' for i in range(3))
        + "".join(
            f'[[links]]\nfrom = "h{i}"\nto = "h{i + 1}"\nlatency_s = 0\nbandwidth_bytes_per_s = 1e9\n'
            for i in range(2)
        )
    )
    with pytest.raises(TopologyError, match="found no ring"):
        pack_rings(network(star))


def read(text):
    graph = ET.fromstring(text).find("graph")
    channels = [[(node.tag, node.get("dev"), node.get("rank")) for node in c] for c in graph]
    return graph.attrib, channels


def test_one_host():
    attributes, channels = read(nccl_graph.dumps([Ring((0, 2, 1), 50e9)], [[0, 1, 2]], inside="NVL"))
    assert attributes == {
        "id": "0",
        "pattern": "4",
        "crossnic": "0",
        "nchannels": "2",
        "speedintra": "25",
        "speedinter": "25",
        "latencyinter": "0",
        "typeintra": "NVL",
        "typeinter": "SYS",
        "samechannels": "1",
    }
    assert channels == [[("gpu", "0", "0"), ("gpu", "2", "2"), ("gpu", "1", "1")]] * 2


def test_several_hosts_share_the_file():
    order = (0, 2, 1, 3, 5, 4)
    _, channels = read(nccl_graph.dumps([Ring(order)], [[0, 1, 2], [3, 4, 5]]))
    gpus = [("gpu", "0", None), ("gpu", "2", None), ("gpu", "1", None)]
    assert channels == [[("net", "0", None), *gpus, ("net", "0", None)]]
    turned = order[2:] + order[:2]
    assert read(nccl_graph.dumps([Ring(turned)], [[0, 1, 2], [3, 4, 5]]))[1] == channels


@pytest.mark.parametrize("order", [(0, 3, 1, 4, 2, 5), (0, 1, 2, 3, 5, 4), (0, 1, 2)])
def test_orders_that_no_common_file_expresses_are_refused(order):
    with pytest.raises(ProgramError, match=r"ring"):
        nccl_graph.dumps([Ring(order)], [[0, 1, 2], [3, 4, 5]])
