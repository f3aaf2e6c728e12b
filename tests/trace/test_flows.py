"""Bytes of collectives between hosts, by algorithm."""

import pytest

from wirewise.errors import InputError
from wirewise.trace.flows import collective_flows


def totals(found):
    """Bytes out of and into each host, without those that stay inside."""
    out, into = {}, {}
    for a, b, size in found.flows:
        if a != b:
            out[a], into[b] = out.get(a, 0.0) + size, into.get(b, 0.0) + size
    return out, into


@pytest.mark.parametrize("n", [2, 3, 8])
def test_ring_all_reduce(n):
    found = collective_flows("all_reduce", range(n), 12e6)
    expected = {h: pytest.approx(2 * (n - 1) / n * 12e6) for h in range(n)}
    assert totals(found) == (expected, expected)
    assert found.rounds == 2 * (n - 1)


def test_ring_over_hosts_with_two_ranks_each_crosses_once_a_host():
    found = collective_flows("all_reduce", [0, 0, 1, 1], 8.0)
    assert sorted(found.flows) == [(0, 0, 12.0), (0, 1, 12.0), (1, 0, 12.0), (1, 1, 12.0)]


def test_gather_and_scatter_are_the_two_halves_of_a_ring():
    half = collective_flows("reduce_scatter", range(4), 8.0)
    assert totals(half)[0] == dict.fromkeys(range(4), 6.0)
    assert totals(collective_flows("all_gather", range(4), 2.0))[0] == dict.fromkeys(range(4), 6.0)
    assert half.rounds == 3


def test_tree_moves_every_payload_up_and_down():
    found = collective_flows("all_reduce", range(4), 5.0, "tree")
    assert totals(found)[0] == {0: 10.0, 1: 10.0, 2: 5.0, 3: 5.0}
    assert found.rounds == 4


@pytest.mark.parametrize("servers", [1, 2])
def test_servers_take_and_give_a_part_of_every_worker(servers):
    found = collective_flows("all_reduce", range(4), 6.0, "ps", servers=servers)
    into = totals(found)[1]
    pushed_and_pulled = 3 * 6.0 / servers + (servers - 1) * 6.0 / servers
    assert into[0] == pytest.approx(pushed_and_pulled)
    assert into[3] == pytest.approx(6.0)


def test_hierarchical_crosses_hosts_as_a_ring_of_hosts():
    found = collective_flows("all_reduce", [0, 0, 1, 1], 8.0, "hierarchical")
    assert totals(found)[0] == {0: 8.0, 1: 8.0}
    assert found.rounds == 4


def test_pairs_broadcast_and_all_to_all():
    assert collective_flows("send", [3, 1], 7.0) == ([(3, 1, 7.0)], 1)
    assert sum(size for *_, size in collective_flows("broadcast", range(5), 3.0).flows) == 12.0
    assert totals(collective_flows("all_to_all", range(4), 4.0))[0] == dict.fromkeys(range(4), 3.0)


def test_nothing_to_send():
    assert collective_flows("all_reduce", [0], 5.0) == ([], 0)
    assert collective_flows("barrier", range(3), 5.0) == ([], 0)


def test_unknown_algorithm_and_servers_are_named():
    with pytest.raises(InputError, match="ring, tree, ps, hierarchical"):
        collective_flows("all_reduce", range(2), 1.0, "star")
    with pytest.raises(InputError, match="3 servers for 2 ranks"):
        collective_flows("all_reduce", range(2), 1.0, "ps", servers=3)
