"""Routes between all ranks from those of one host of each kind."""

import msgspec
import numpy as np
import pytest

from wirewise.collective import network
from wirewise.cost import Links
from wirewise.cost.pairs import hosts_of_names
from wirewise.cost.routes import hosts_alike
from wirewise.topology import preset


def slower(topology, end, share=0.5):
    """The topology with this share of the rate of the last link that begins or ends there."""
    links = list(topology.links)
    number = max(n for n, link in enumerate(links) if end in (link.source, link.target))
    rate = links[number].bandwidth_bytes_per_s * share
    links[number] = msgspec.structs.replace(links[number], bandwidth_bytes_per_s=rate)
    return msgspec.structs.replace(topology, links=tuple(links))


CLUSTERS = {
    "one machine": preset("dgx-h100"),
    "switch": preset("dgx-h100x4"),
    "rails": preset("dgx-a100x3@rails/2"),
    "tree": preset("dgx-h100x6@fat-tree/2"),
    "dragonfly": preset("dgx-a100x6@dragonfly"),
    "no switch": preset("dgx-1v"),
    "one slow port": slower(preset("dgx-h100x4@rails"), preset("dgx-h100x4").ranks[9]),
}


@pytest.mark.parametrize("topology", CLUSTERS.values(), ids=CLUSTERS)
def test_routes_are_those_of_the_network(topology):
    found, graph = Links.of(topology).pairs, network(topology)
    for source in range(graph.ranks):
        for target in set(range(graph.ranks)) - {source}:
            if graph.route(source, target) is not None:
                assert found.latency_s[source, target] == graph.latency(source, target)
                assert found.s_per_byte[source, target] == 1 / graph.rate(source, target)
            else:
                assert np.isinf(found.s_per_byte[source, target])


def classes(topology):
    graph = network(topology)
    return hosts_alike(graph, hosts_of_names(topology, graph.vertices).tolist())


def test_hosts_that_can_swap_places_are_alike():
    assert classes(CLUSTERS["switch"]) == [(0, 1, 2, 3)]
    assert classes(CLUSTERS["tree"]) == [(0, 1, 2, 3), (4, 5)]
    assert classes(CLUSTERS["one slow port"]) == [(0, 2, 3), (1,)]
