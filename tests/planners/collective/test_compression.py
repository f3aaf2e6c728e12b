"""Only slow links compress, and plans move bytes to them."""

import pytest

from tests.planners.collective.networks import four_unequal
from wirewise.collective.bounds import bound
from wirewise.errors import InputError
from wirewise.planners.collective import CollectiveProblem, greedy
from wirewise.planners.collective.compression import compressed
from wirewise.sim.programs import simulate


def test_slow_links_gain():
    net = four_unequal()
    found = compressed(net, ratio=0.25, codec_s_per_byte=1 / 100e6)
    assert {net.edges[n].bandwidth_bytes_per_s for n in found.edges} == {12.5e6, 50e6}
    for number, edge in enumerate(net.edges):
        seconds = 1 / found.network.edges[number].bandwidth_bytes_per_s
        plain = 1 / edge.bandwidth_bytes_per_s
        assert seconds == pytest.approx(min(plain, 0.25 * plain + 1e-8))


def test_a_slow_codec_is_not_used():
    assert compressed(four_unequal(), 0.25, 1.0) == (four_unequal(), frozenset())


def test_plans_for_compressed_links_send_more_over_them():
    net = four_unequal()
    found = compressed(net, 0.25, 0.0)
    wanted = CollectiveProblem(network=found.network, collective="all_gather", size_bytes=16e6)
    program = greedy.synthesize(wanted, runs=16)
    seconds = simulate(program, found.network, 16e6).finish_s
    assert seconds < 0.3 * bound(net, "all_gather", 16e6).seconds
    with pytest.raises(InputError, match="ratio"):
        compressed(net, 0.0, 0.0)
