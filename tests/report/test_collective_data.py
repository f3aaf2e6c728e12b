"""Programs and networks as the viewer's script reads them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.report.test_collective_view import SIZE, network_of
from wirewise.collective import network
from wirewise.collective.builders import BUILDERS, build
from wirewise.report.collective_analysis import analyse
from wirewise.report.collective_data import program_object, vertex_positions
from wirewise.topology import preset


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["lab-4", "dgx-1v", "dgx-2", "pcie-8"])
@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "all_reduce", "all_to_all"])
def test_the_red_edges_are_as_wide_as_the_bound_says(name, collective):
    net = network(preset(name))
    algorithm = next(n for of, n in BUILDERS if of == collective)
    found = analyse(build(collective, algorithm, net.ranks), net, SIZE)
    wide = sum(net.edges[edge].bandwidth_bytes_per_s for edge in found.cut_edges)
    assert wide == pytest.approx(found.bound.bandwidth_bytes_per_s)
    assert found.timeline.finish_s >= found.bound.seconds
    view = program_object(found, "")
    assert view["cut_edges"] == found.cut_edges
    assert "no program takes less" in view["cut_words"]


@pytest.mark.parametrize("name", ["lab-4", "lab-16", "dgx-1v", "dgx-2", "pcie-8"])
def test_vertices_do_not_lie_on_each_other(name):
    found = np.array(vertex_positions(network(preset(name))))
    apart = np.hypot(*(found[:, None] - found[None]).transpose(2, 0, 1)) + 9 * np.eye(len(found))
    assert apart.min() > 0.15
    assert np.abs(found).max() <= 1 + 1e-9


def test_links_of_a_route_carry_its_bytes():
    found = network_of(build("broadcast", "flat", 4))
    busiest = found.network.edges[found.busiest_edge]
    assert (busiest.source, found.network.vertices[busiest.target]) == (0, "bridge")
    assert found.edge_bytes[found.busiest_edge] == pytest.approx(3 * SIZE)
