"""Bytes and messages of collectives by the names that traces have for them."""

import pytest

from tests.collective import plain
from wirewise.collective import check
from wirewise.collective.named import ALGORITHMS, collective_flows, collective_hops, named_program
from wirewise.errors import InputError


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


@pytest.mark.sweep
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("hosts", [[0, 1], [0, 1, 2], [0, 0, 1, 1], [0, 1, 0, 2, 1], list(range(8))])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
)
def test_single_transfers_carry_the_bytes_of_the_whole(collective, algorithm, hosts, servers):
    hosts = hosts[:2] if collective == "send" else hosts
    total = {}
    found = collective_hops(collective, hosts, 1200.0, algorithm, servers=servers)
    for number, hop in enumerate(found):
        assert all(i < number for i in hop.after)
        pair = hosts[hop.source], hosts[hop.target]
        total[pair] = total.get(pair, 0.0) + hop.size_bytes
    whole = collective_flows(collective, hosts, 1200.0, algorithm, servers=servers)
    assert total == {(a, b): pytest.approx(size) for a, b, size in whole.flows}


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_sums_all_ranks_and_gives_all_ranks_the_sum(ranks):
    """Play the transfers with sets: who has which parts from whom."""
    part = {(r, chunk): {r} for r in range(ranks) for chunk in range(ranks)}
    for hop in collective_hops("all_reduce", range(ranks), 8.0 * ranks):
        chunk = (hop.source - hop.step) % ranks
        part[hop.target, chunk] = part[hop.target, chunk] | part[hop.source, chunk]
    assert all(found == set(range(ranks)) for found in part.values())


@pytest.mark.parametrize("algorithm", ["tree", "ps", "hierarchical"])
@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1, 1], [0, 1, 2, 0, 1], list(range(7))])
def test_other_algorithms_bring_every_rank_the_payload_of_all(algorithm, hosts):
    """A hop carries what its sender had when all hops that it waits for had ended."""
    found = collective_hops("all_reduce", hosts, 1.0, algorithm)
    carried = []
    have = {r: {r} for r in range(len(hosts))}
    for hop in found:
        got = {hop.source}.union(*(carried[i] for i in hop.after if found[i].target == hop.source))
        carried.append(got)
        have[hop.target] = have[hop.target] | got
    ring = algorithm == "hierarchical" and len(set(hosts)) > 1
    assert all(have[r] == set(range(len(hosts))) for r in have) or ring
    if ring:
        assert set().union(*have.values()) == set(range(len(hosts)))


COLLECTIVES = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send",
    "recv",
    "barrier",
    "",
]
HOSTS = [
    [0, 1],
    [0, 0],
    [0, 1, 2],
    [0, 0, 1, 1],
    [1, 0, 0, 1],
    [0, 1, 0, 2, 1],
    [3, 1, 3, 1, 1],
    [0] * 5,
    *(list(range(n)) for n in (4, 5, 6, 7, 8, 13)),
    [rank // 4 for rank in range(16)],
]


@pytest.mark.sweep
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_flows_are_those_of_the_plain_description(collective, hosts):
    hosts = hosts[:2] if collective in ("send", "recv") else hosts
    for algorithm in ALGORITHMS:
        for servers in {1, 2, len(hosts)}:
            wanted, rounds = plain.collective_flows(collective, hosts, 1234.5, algorithm, servers=servers)
            found = collective_flows(collective, hosts, 1234.5, algorithm, servers=servers)
            expected = {(a, b): pytest.approx(size, rel=1e-14) for a, b, size in wanted}
            assert {(a, b): size for a, b, size in found.flows} == expected
            assert found.rounds == rounds


@pytest.mark.sweep
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name])
def test_hops_wait_for_those_of_the_plain_description(collective, hosts):
    """Directly or through others: who waits for whom at all is the same."""
    hosts = hosts[:2] if collective in ("send", "recv") else hosts
    for algorithm in ALGORITHMS:
        for servers in {1, 2, len(hosts)}:
            wanted = plain.hops(collective, hosts, 1234.5, algorithm, servers=servers)
            found = collective_hops(collective, hosts, 1234.5, algorithm, servers=servers)
            assert ancestors(found) == ancestors(wanted)
            sizes = dict(zip(names(wanted), (pytest.approx(hop.size_bytes) for hop in wanted), strict=True))
            assert dict(zip(names(found), (hop.size_bytes for hop in found), strict=True)) == sizes


def test_an_all_to_all_leaves_out_what_is_empty():
    splits = [[0, 10, 0], [30, 0, 40], [0, 0, 0]]
    found = collective_hops("all_to_all", [0, 1, 2], 100.0, splits=splits)
    wanted = plain.hops("all_to_all", [0, 1, 2], 100.0, splits=splits)
    assert ancestors(found) == ancestors(wanted)
    assert sorted(hop.size_bytes for hop in found) == [10, 30, 40]


def names(found):
    """Source, target, and how many went before between the two."""
    seen = {}
    for hop in found:
        pair = hop.source, hop.target
        seen[pair] = seen.get(pair, 0) + 1
        yield *pair, seen[pair]


def ancestors(found):
    own, name = [], list(names(found))
    for hop in found:
        own.append({name[i] for i in hop.after}.union(*(own[i] for i in hop.after)))
    return dict(zip(name, own, strict=True))


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_programs_do_what_their_collective_asks_for(hosts):
    for collective in COLLECTIVES[:5]:
        for algorithm in ALGORITHMS:
            for servers in {1, 2, len(hosts)}:
                check(named_program(collective, hosts, algorithm, servers=servers))
