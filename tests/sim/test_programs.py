"""Programs on networks: textbook times on a crossbar, hand-computed times on shared links."""

import itertools
import random

import msgspec
import numpy as np
import pytest

from tests.collective.random_programs import random_program
from tests.sim.program_reference import simulate_slowly
from wirewise.collective import Edge, Network, Program, Transfer, network
from wirewise.collective.builders import build
from wirewise.collective.regular import REGULAR, regular
from wirewise.errors import ProgramError, TopologyError
from wirewise.sim.programs import simulate
from wirewise.topology.presets import lab_hosts, preset

LATENCY_S, S_PER_BYTE, ADD_S_PER_BYTE = 3e-6, 1e-9, 0.25e-9


def crossbar(ranks: int) -> Network:
    """Each rank on a port of its own: α = 3 µs and β = 1 ns per byte between any two."""
    up = [Edge(r, ranks, 1e9, LATENCY_S / 2) for r in range(ranks)]
    down = [Edge(ranks, r, 1e9, LATENCY_S / 2) for r in range(ranks)]
    names = (*(f"rank{r}" for r in range(ranks)), "switch")
    return Network(name="crossbar", ranks=ranks, vertices=names, edges=(*up, *down))


def pair(*edges: Edge, ranks: int = 2) -> Network:
    return Network(name="hand", ranks=ranks, vertices=tuple(map(str, range(ranks))), edges=edges)


def program(*transfers: Transfer, collective="broadcast", ranks=2, chunks=1, **more) -> Program:
    return Program(
        name="hand", collective=collective, ranks=ranks, chunks=chunks, transfers=transfers, **more
    )


def test_one_message_takes_latency_and_bytes():
    line = simulate(program(Transfer(0, 0, 1, 0)), pair(Edge(0, 1, 1e6, 1e-3)), 500)
    assert line.finish_s == pytest.approx(1.5e-3, rel=1e-12)
    assert line.edge_busy_s.tolist() == [pytest.approx(0.5e-3)]
    assert [m.target for m in line.messages] == [1]


def test_latencies_of_following_messages_overlap_unless_in_rounds():
    two = program(Transfer(0, 0, 1, 0), Transfer(1, 0, 1, 1), chunks=2)
    net = pair(Edge(0, 1, 1e6, 1e-3))
    assert simulate(two, net, 1000).finish_s == pytest.approx(2e-3, rel=1e-12)
    assert simulate(two, net, 1000, in_rounds=True).finish_s == pytest.approx(3e-3, rel=1e-12)


def test_messages_to_one_rank_share_its_link_at_the_switch():
    gather = build("gather", "flat", 4)
    at_once = Program(
        name="all at once", collective="gather", ranks=4, chunks=4,
        transfers=tuple(Transfer(t.chunk, t.source, t.target, 0) for t in gather.transfers),
    )  # fmt: skip
    line = simulate(at_once, crossbar(4), 4e6)
    assert line.finish_s == pytest.approx(3e-3 + LATENCY_S, rel=1e-12)
    assert line.edge_busy_s[4] == pytest.approx(3e-3)
    assert line.start_s[0].tolist() == pytest.approx([2e-3, 1e-3, 0.0])


def test_a_fast_edge_is_free_before_the_slow_one_behind_it():
    edges = (Edge(0, 3, 4e6, 0.0), Edge(3, 1, 1e6, 0.0), Edge(3, 2, 1e6, 0.0))
    net = Network(name="uplink", ranks=3, vertices=("a", "b", "c", "switch"), edges=edges)
    flat = program(Transfer(0, 0, 1, 0), Transfer(0, 0, 2, 1), ranks=3)
    assert simulate(flat, net, 1e6).finish_s == pytest.approx(1.25, rel=1e-12)


def test_a_message_that_is_ready_overtakes_one_whose_other_link_is_busy():
    # Rank 0 wants to send to 1, which hears rank 2 for long; meanwhile its message to 3 goes.
    sends = (
        Transfer(2 * 4 + 1, 2, 1, 0),
        Transfer(0 * 4 + 1, 0, 1, 1),
        Transfer(0 * 4 + 3, 0, 3, 2),
    )
    shares = tuple(8.0 if c == 9 else 1.0 for c in range(16))
    part = program(*sends, collective="all_to_all", ranks=4, chunks=16, shares=shares)
    line = simulate(part, crossbar(4), 4e6)
    assert line.start_s[0].tolist() == pytest.approx([0.0, 1e-3, 0.0])


def test_a_rank_adds_one_message_after_the_other():
    reduce = program(Transfer(0, 1, 0, 0, True), Transfer(0, 2, 0, 0, True), collective="reduce", ranks=3)
    net = pair(Edge(1, 0, 1e6, 0.0), Edge(2, 0, 1e6, 0.0), ranks=3)
    assert simulate(reduce, net, 1e6, reduce_s_per_byte=1e-7).finish_s == pytest.approx(1.2, rel=1e-12)


def test_a_value_is_kept_until_it_has_been_sent():
    # Both swap; rank 1's own way out is kept busy for a second first, so it cannot take in rank 0's value before.
    swap = program(
        Transfer(2, 1, 2, 0), Transfer(0, 0, 1, 1, True), Transfer(0, 1, 0, 1, True),
        collective="all_reduce", ranks=3, chunks=3,
    )  # fmt: skip
    net = Network(
        name="one way out", ranks=3, vertices=("a", "b", "c", "s"),
        edges=(Edge(0, 1, 1e6, 0.0), Edge(1, 3, 1e6, 0.0), Edge(3, 0, 1e9, 0.0), Edge(3, 2, 1e9, 0.0)),
    )  # fmt: skip
    line = simulate(swap, net, 3e6)
    ends = {(m.source, m.target): end for m, end in zip(line.messages, line.end_s[0], strict=True)}
    assert ends == {(1, 2): pytest.approx(1.0), (0, 1): pytest.approx(1.0), (1, 0): pytest.approx(2.0)}


def costing(processors: int, ranks: int = 4) -> Network:
    """A crossbar on which a message costs each end a millisecond."""
    return msgspec.structs.replace(crossbar(ranks), message_s=(1e-3,) * ranks, processors=processors)


def test_a_message_costs_both_ends():
    one = program(Transfer(0, 0, 1, 0))
    assert simulate(one, costing(0, 2), 1e6).finish_s == pytest.approx(3e-3 + LATENCY_S, rel=1e-12)
    # Textbooks know no such cost.
    assert simulate(one, costing(0, 2), 1e6, in_rounds=True).finish_s == pytest.approx(1e-3 + LATENCY_S)


@pytest.mark.parametrize(("processors", "milliseconds"), [(0, 4), (1, 6), (2, 4), (3, 4)])
def test_a_rank_handles_one_message_after_the_other(processors, milliseconds):
    # Three ranks send to one at once: each sends for a millisecond, then the root receives for three.
    gather = build("gather", "flat", 4)
    at_once = msgspec.structs.replace(
        gather, transfers=tuple(msgspec.structs.replace(t, step=0) for t in gather.transfers)
    )
    took = simulate(at_once, costing(processors), 4e-3).finish_s
    assert took == pytest.approx(milliseconds * 1e-3 + LATENCY_S * (milliseconds == 4), abs=2 * LATENCY_S)


def test_bytes_of_a_burst_pass_at_once_and_fill_again_with_time():
    net = pair(Edge(0, 1, 1e6, 0.0, burst_bytes=500.0))
    flat = program(Transfer(0, 0, 1, 0))
    for size_bytes, milliseconds in ((400, 0.0), (500, 0.0), (2000, 1.5)):
        assert simulate(flat, net, size_bytes).finish_s == pytest.approx(milliseconds * 1e-3, abs=1e-15)
    # The second message finds the bucket overdrawn, and waits until it is even.
    two = program(Transfer(0, 0, 1, 0), Transfer(1, 0, 1, 1), chunks=2)
    line = simulate(two, net, 4000)
    assert line.start_s[0].tolist() == pytest.approx([0.0, 1.5e-3])
    assert line.finish_s == pytest.approx(3.5e-3)


@pytest.mark.parametrize("segments", [1, 2, 7, 32])
def test_chain_is_a_pipeline(segments):
    line = simulate(build("broadcast", "chain", 6, segments=segments), crossbar(6), 6e6, in_rounds=True)
    step_s = LATENCY_S + 6e6 / segments * S_PER_BYTE
    assert line.finish_s == pytest.approx((6 - 2 + segments) * step_s, rel=1e-9)


def test_same_again():
    built = build("all_to_all", "linear", 12, segments=3)
    first, second = (simulate(built, crossbar(12), 1e6) for _ in range(2))
    assert np.array_equal(first.start_s, second.start_s) and np.array_equal(first.end_s, second.end_s)


def test_no_edge_carries_two_messages_at_a_time():
    built, net = build("all_to_all", "bruck", 9, segments=4), crossbar(9)
    line = simulate(built, net, 9e6)
    sizes = built.chunk_bytes(9e6)
    for edge in range(len(net.edges)):
        held = []
        for number, m in enumerate(line.messages):
            if edge in {use.edge for use in net.route(m.source, m.target)}:
                hold_s = sum(sizes[t.chunk] for t in m.transfers) / built.segments * S_PER_BYTE
                held += [(start, start + hold_s) for start in line.start_s[:, number]]
        held.sort()
        assert all(a[1] <= b[0] + 1e-12 for a, b in itertools.pairwise(held))
    assert not np.isnan(line.end_s).any()


def test_what_does_not_fit():
    built = build("all_gather", "ring", 4)
    with pytest.raises(ProgramError, match="is for 4 ranks; expected 3"):
        simulate(built, crossbar(3), 1e6)
    line = pair(*(Edge(a, b, 1e6, 0.0) for a, b in ((0, 1), (1, 2), (2, 0))), ranks=3)
    with pytest.raises(ProgramError, match="sends from rank 0 to 2"):
        simulate(build("all_gather", "bruck", 3), line, 1e6)


def random_network(rng: random.Random, ranks: int, ties: bool) -> Network:
    """Direct links between some ranks, and one or two switches for all; with ties, times are sums of quarters."""
    edges = [
        Edge(a, b, rng.choice((0.5, 1.0, 2.0)), rng.choice((0.0, 0.25, 1.0)))
        for a, b in itertools.permutations(range(ranks), 2)
        if rng.random() < 0.3
    ]
    edges += [Edge(r, ranks, rng.choice((0.25, 1.0, 4.0)), rng.choice((0.0, 0.5))) for r in range(ranks)]
    edges += [Edge(ranks, r, rng.choice((0.25, 1.0, 4.0)), rng.choice((0.0, 0.5))) for r in range(ranks)]
    planes = rng.choice((1, 2))
    if planes == 2:  # the same again: every pair over a switch has two equal paths
        edges += [
            Edge(e.source + (e.source == ranks), e.target + (e.target == ranks), *e[2:])
            for e in edges
            if ranks in e[:2]
        ]
    if not ties:
        edges = [e._replace(latency_s=rng.random(), bandwidth_bytes_per_s=rng.random() + 0.1) for e in edges]
    names = tuple(map(str, range(ranks + planes)))
    return Network(name="random", ranks=ranks, vertices=names, edges=tuple(edges))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(("reduce_s_per_byte", "ties"), [(0.0, True), (0.5, False)])
def test_as_looking_at_every_message_at_every_moment(reduce_s_per_byte, ties):
    rng = random.Random(5)
    for _ in range(60):
        part = random_program(rng)
        part = msgspec.structs.replace(part, segments=rng.randint(1, 3), transfers=part.transfers[:60])
        net = random_network(rng, part.ranks, ties)
        size_bytes = part.chunks * part.segments * rng.choice((0, 1, 4))
        line = simulate(part, net, size_bytes, reduce_s_per_byte=reduce_s_per_byte)
        start, end = simulate_slowly(part, net, size_bytes, reduce_s_per_byte)
        for item, start_s in start.items():
            assert line.start_s[item] == pytest.approx(start_s, abs=1e-9), (part, item)
            assert line.end_s[item] == pytest.approx(end[item], abs=1e-9), (part, item)


@pytest.mark.parametrize(("collective", "algorithm"), REGULAR)
@pytest.mark.parametrize("segments", [1, 3])
def test_p3_a_rule_takes_as_long_as_its_explicit_form(collective, algorithm, segments):
    net = network(preset("dgx-h100x4"))
    rule = regular(collective, algorithm, 32, period=8, segments=segments)
    classes, ranks = (simulate(one, net, 1e8, reduce_s_per_byte=1e-12) for one in (rule, rule.expand()))
    assert classes.finish_s == pytest.approx(ranks.finish_s, rel=1e-12)
    assert classes.edge_busy_s == pytest.approx(ranks.edge_busy_s, rel=1e-12)
    own = [m.source < 8 for m in ranks.messages]
    assert classes.end_s == pytest.approx(ranks.end_s[:, own], rel=1e-12)


def test_rules_are_refused_where_ranks_are_not_alike():
    ring = regular("all_reduce", "ring", 4)
    uneven = lab_hosts(["10mbit", "20mbit", "10mbit", "20mbit"])
    with pytest.raises(
        TopologyError, match=r"the link from .* has no counterpart; expected hosts of 1 ranks"
    ):
        simulate(ring, msgspec.structs.replace(network(uneven), processors=0), 1e6)
    pairs = regular("all_reduce", "ring", 4, period=2)
    for message_s in ((), (1e-4, 2e-4, 1e-4, 2e-4)):
        own = msgspec.structs.replace(network(uneven), processors=0, message_s=message_s)
        finish_s = simulate(ring.expand(), own, 1e6).finish_s
        assert simulate(pairs, own, 1e6).finish_s == pytest.approx(finish_s, rel=1e-12)
    with pytest.raises(ProgramError, match="share 1 processors, so that their turns differ"):
        simulate(pairs, network(uneven), 1e6)
    with pytest.raises(ProgramError, match="from 'leaf7' to 'spine' from more than one host at once"):
        simulate(regular("all_reduce", "ring", 32, period=8), network(preset("dgx-h100x4@rails")), 1e6)
