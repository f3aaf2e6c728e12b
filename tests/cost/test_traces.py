"""Links and interference from traces that are made with known ones."""

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.cost.traces import hosts_of, interference_of
from wirewise.trace.records import Header, Op, Probe, RankTrace, Trace

RATE, LATENCY = 20e6, 5e-4


def trace(hosts, count=40, *, slowdown=1.0, link_bytes_per_s=0.0):
    """All-reduces of three sizes; a backward op that begins beside them for part of its time."""
    random = np.random.default_rng(0)
    n, crosses = len(hosts), len(set(hosts)) > 1
    headers = [
        Header(
            rank=r,
            world_size=n,
            host=h,
            groups={"all": list(range(n))},
            link_bytes_per_s=link_bytes_per_s,
        )
        for r, h in enumerate(hosts)
    ]
    ops, now = [[] for _ in hosts], 0.0
    for step in range(count):
        size = int(random.choice([10_000, 1_000_000, 4_000_000]))
        share = 2 * (n - 1) / n * (1 if crosses else n)
        took = 2 * (n - 1) * LATENCY + share * size / RATE
        for rank in range(n):
            early = 0.001 * random.random() * (rank > 0)
            common = {
                "kind": "communication",
                "group": "all",
                "seq": step,
                "collective": "all_reduce",
                "step": step,
            }
            ops[rank].append(
                Op(name="bucket 0", start_s=now - early, end_s=now + took, size_bytes=size, **common)
            )
            # Alone it takes 1 s; beside communication it works at 1 / slowdown.
            length = took + max(1.0 - took / slowdown, 0.0)
            ops[rank].append(Op(name="a", kind="backward", start_s=now, end_s=now + length, step=step))
            ops[rank].append(Op(name="a", kind="forward", start_s=now - 0.5, end_s=now, step=step))
        now += 2.0
    return Trace([RankTrace(header, own) for header, own in zip(headers, ops, strict=True)], aligned=True)


def test_links_between_hosts():
    links = Links.fit(trace(["x", "y", "z"]))
    assert links.bandwidth_out_bytes_per_s == pytest.approx(np.full(3, RATE), rel=1e-3)
    assert links.latency_s[0, 1] == pytest.approx(LATENCY, rel=1e-3)
    assert np.isinf(links.intra_bytes_per_s).all()


def test_two_ranks_of_a_host_share_its_interface_once():
    links = Links.fit(trace(["x", "x", "y", "y"]))
    assert links.hosts == 2
    assert links.bandwidth_in_bytes_per_s == pytest.approx(np.full(2, RATE), rel=1e-3)


def test_ranks_of_one_host():
    links = Links.fit(trace(["x", "x"], link_bytes_per_s=1e6))
    assert links.intra_bytes_per_s == pytest.approx([RATE], rel=1e-3)
    assert links.bandwidth_out_bytes_per_s == pytest.approx([0.957e6])


def probed(hosts, rates):
    """A block of each rank to the next one, at a rate of its own."""
    found, size = trace(hosts), 128 * 1024
    for rank, rate in enumerate(rates):
        peer = (rank + 1) % len(hosts)
        block = Probe(peer=peer, sent_s=0.0, peer_s=0.0, received_s=size / rate, size_bytes=size)
        found.ranks[rank].header.probes.append(block)
    return found


def test_a_late_block_makes_no_other_link_fast():
    links = Links.fit(probed(["x", "y"], [RATE, RATE / 2]))
    assert links.bandwidth_out_bytes_per_s == pytest.approx(np.full(2, RATE), rel=1e-3)
    assert links.bandwidth_in_bytes_per_s == pytest.approx(np.full(2, RATE), rel=1e-3)


def test_hosts_with_clearly_faster_blocks_get_more():
    links = Links.fit(probed(["x", "y", "z"], [RATE, 3 * RATE, 3 * RATE]))
    assert links.bandwidth_out_bytes_per_s == pytest.approx(RATE * np.array([1, 3, 3]), rel=1e-3)
    assert links.bandwidth_in_bytes_per_s == pytest.approx(RATE * np.array([3, 1, 3]), rel=1e-3)


def test_hosts_in_the_order_of_ranks():
    assert hosts_of(trace(["b", "a", "b"], count=1)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_interference(slowdown):
    assert interference_of(trace(["x", "y"], slowdown=slowdown)) == pytest.approx(slowdown, rel=0.01)
