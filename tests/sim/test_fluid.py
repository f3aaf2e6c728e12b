"""Links that messages share fairly: hand-computed cases, and an independent simulation of random ones."""

import random

import msgspec
import pytest

from tests.collective.random_programs import random_program
from tests.sim.fluid_reference import simulate_fluid
from tests.sim.test_programs import crossbar, pair, program, random_network
from wirewise.collective import Edge, Transfer, network
from wirewise.sim.programs import simulate
from wirewise.topology import preset


def sharing(made):
    return msgspec.structs.replace(made, shares=True)


@pytest.mark.parametrize("seed", range(16))
def test_as_an_independent_fluid_simulation(seed):
    rng = random.Random(seed)
    built = msgspec.structs.replace(random_program(rng), segments=1 + seed % 3)
    net = sharing(random_network(rng, built.ranks, ties=bool(seed % 2)))
    expected = simulate_fluid(built, net, 64.0)
    assert simulate(built, net, 64.0).finish_s == pytest.approx(expected, rel=2e-3)


def test_two_flows_of_a_link_have_half_each_and_the_rest_goes_to_the_longer():
    # From 0 to 1 a byte, from 0 to 2 three: both at half until the first is in at 2, then all for the second.
    edges = (Edge(0, 3, 1.0, 0.0), Edge(3, 1, 9.0, 0.0), Edge(3, 2, 9.0, 0.0))
    net = sharing(pair(*edges, ranks=3))
    net = msgspec.structs.replace(net, vertices=("a", "b", "c", "switch"))
    sends = (Transfer(1, 0, 1, 0), Transfer(2, 0, 2, 0))
    both = program(*sends, collective="scatter", ranks=3, chunks=3, shares=(1.0, 1.0, 1.0))
    assert simulate(both, net, 3.0).end_s[0].tolist() == pytest.approx([2.0, 2.0])
    later = program(
        *sends, Transfer(2, 0, 2, 1), Transfer(2, 0, 2, 2), collective="scatter", ranks=3, chunks=3
    )
    assert simulate(later, net, 3.0).finish_s == pytest.approx(4.0)


def test_a_message_over_two_full_links_has_a_third_of_each():
    # From 0 to 2 over both links, 0 to 1 and 1 to 2 over one each: a third and two thirds; max-min rates are halves.
    edges = (Edge(0, 3, 1.0, 0.0), Edge(3, 1, 9.0, 0.0), Edge(3, 4, 9.0, 0.0), Edge(1, 4, 9.0, 0.0),
             Edge(4, 2, 1.0, 0.0))  # fmt: skip
    net = sharing(pair(*edges, ranks=3))
    net = msgspec.structs.replace(net, vertices=("a", "b", "c", "in", "out"))
    sends = (Transfer(0, 0, 1, 0), Transfer(1, 1, 2, 0), Transfer(2, 0, 2, 0))
    both = program(*sends, collective="all_gather", ranks=3, chunks=3)
    line = simulate(both, net, 3.0)
    # At 1.5 the short ones are in, and the long one sends its other half at the full rate.
    ends = {(m.source, m.target): float(end) for m, end in zip(line.messages, line.end_s[0], strict=True)}
    assert ends == pytest.approx({(0, 1): 1.5, (1, 2): 1.5, (0, 2): 2.0}, rel=1e-3)


def test_messages_of_a_pair_follow_each_other():
    two = program(Transfer(0, 0, 1, 0), Transfer(1, 0, 1, 1), chunks=2)
    line = simulate(two, sharing(pair(Edge(0, 1, 1e6, 1e-3))), 1000)
    assert line.end_s[0].tolist() == pytest.approx([1.5e-3, 2e-3])


def test_crossing_messages_are_slower_where_they_share():
    """Two messages of one sender come in together, at twice the time of the first one by itself."""
    sends = (Transfer(1, 0, 1, 0), Transfer(2, 0, 2, 0))
    both = program(*sends, collective="scatter", ranks=3, chunks=3)
    shared, alone = (simulate(both, made, 3e6).end_s[0] for made in (sharing(crossbar(3)), crossbar(3)))
    assert shared.tolist() == pytest.approx([2e-3 + 3e-6] * 2)
    assert alone.tolist() == pytest.approx([1e-3 + 3e-6, 2e-3 + 3e-6])


def test_links_of_ethernet_are_shared_and_others_not():
    assert network(preset("lab-4")).shares and network(preset("h4")).shares
    assert not network(preset("dgx-a100x2")).shares


def test_a_message_without_bytes_and_costs_of_messages():
    net = sharing(msgspec.structs.replace(crossbar(2), message_s=(1e-3, 1e-3), processors=1))
    one = simulate(program(Transfer(0, 0, 1, 0)), net, 1e6).finish_s
    assert one == pytest.approx(3e-3 + 3e-6, rel=1e-9)
