"""What messages tell of links whose rates are known."""

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.cost.messages import message_samples
from wirewise.trace.match import match
from wirewise.trace.records import Header, Op, RankTrace, Trace

RATE, LATENCY = 20e6, 4e-4


def trace(messages, hosts):
    """`messages`: (source, target, bytes, start, end)."""
    n = len(hosts)
    headers = [
        Header(rank=r, world_size=n, host=h, groups={"all": list(range(n))}) for r, h in enumerate(hosts)
    ]
    ops = [[] for _ in hosts]
    for number, (source, target, size, start, end) in enumerate(messages):
        common = {"kind": "communication", "group": "all", "step": 0, "size_bytes": size, "tag": number}
        # The sender looks a second later whether it is done.
        ops[source].append(
            Op(name="send", collective="send", peer=target, start_s=start, end_s=end + 1.0, **common)
        )
        ops[target].append(
            Op(name="recv", collective="recv", peer=source, start_s=start - 0.1, end_s=end, **common)
        )
    return Trace([RankTrace(header, own) for header, own in zip(headers, ops, strict=True)], aligned=True)


def rounds(per_round, count=20):
    """Messages that begin together and wait together, each with its share of the interface that is used most."""
    random, now, found = np.random.default_rng(0), 0.0, []
    for _ in range(count):
        size = int(random.choice([50_000, 400_000, 900_000]))
        load = max(sum(way[k] == one[k] for way in per_round) for one in per_round for k in (0, 1))
        seconds = LATENCY + load * size / RATE
        found += [(source, target, size, now, now + seconds) for source, target in per_round]
        now += seconds + 0.01
    return found


@pytest.mark.parametrize(
    "per_round", [[(0, 1)], [(0, 1), (1, 2), (2, 0)], [(1, 0), (2, 0)], [(0, 1), (0, 2)]]
)
def test_rate_of_the_interface_that_is_used_most(per_round):
    links = Links.fit(trace(rounds(per_round), ["x", "y", "z"]))
    assert links.bandwidth_out_bytes_per_s == pytest.approx(np.full(3, RATE), rel=1e-3)
    assert links.latency_s[0, 1] == pytest.approx(LATENCY, rel=1e-2)


def test_a_message_that_overlaps_in_part():
    # Half of the time alone, half of it beside another one.
    found = trace([(0, 1, 300, 0.0, 2.0), (0, 2, 300, 1.0, 3.0)], ["x", "y", "z"])
    between, inside = message_samples(match(found), np.arange(3, dtype=np.int32))
    assert [(one.end_s - one.start_s, one.wire_bytes) for one in between] == [(pytest.approx(3.0), 600)]
    assert inside == []


def test_who_of_two_gets_more_does_not_matter_to_the_rate():
    """One of two messages that leave a host together comes after 0.6 of the time, now the first, now the second."""
    random, found = np.random.default_rng(0), []
    for now in np.arange(20.0):
        size = int(random.choice([50_000, 400_000, 900_000]))
        ends = random.permutation([0.6, 1.0]) * (2 * size / RATE)
        found += [(0, target, size, now, now + end) for target, end in zip((1, 2), ends, strict=True)]
    links = Links.fit(trace(found, ["x", "y", "z"]))
    assert links.bandwidth_out_bytes_per_s == pytest.approx(np.full(3, RATE), rel=1e-3)
    assert links.latency_s[0, 1] == pytest.approx(0.0, abs=1e-5)


def test_messages_inside_a_host():
    links = Links.fit(trace(rounds([(0, 1)]), ["x", "x"]))
    assert links.intra_bytes_per_s == pytest.approx([RATE], rel=1e-3)
    assert np.isinf(links.bandwidth_out_bytes_per_s).all()
