"""Messages that share interfaces: their seconds alone, and the weights with which they come when they did."""

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.sim import replay
from wirewise.trace import build
from wirewise.trace.match import Match, match
from wirewise.trace.records import Header, Op, RankTrace, Trace
from wirewise.trace.traffic import Traffic, message_weights

HOSTS = [0, 1, 2, 3]


def message(source, target, size, start, end):
    ops = [
        Op(name=name, kind="communication", collective=name, peer=peer, start_s=start, end_s=end, step=0,
           size_bytes=size)
        for name, peer in (("send", target), ("recv", source))
    ]  # fmt: skip
    return Match("all", 0, "send", 0, size, (source, target), tuple(ops))


def test_what_overlaps_in_part_shares_that_part():
    traffic = Traffic([message(0, 1, 300, 0.0, 2.0), message(0, 2, 300, 1.0, 3.0)], HOSTS)
    assert traffic.alone_s() == pytest.approx([1.5, 1.5])
    assert traffic.alone_s(np.array([3.0, 1.0])) == pytest.approx([1.75, 1.25])
    assert traffic.groups().tolist() == [0, 0]


def test_groups_are_of_one_interface_without_a_pause():
    found = [
        message(1, 0, 1, 0.0, 1.0),
        message(2, 0, 1, 0.5, 1.5),
        message(0, 3, 1, 0.0, 1.5),
        message(3, 0, 1, 1.5, 2.0),
    ]
    first, second, out, later = Traffic(found, HOSTS).groups().tolist()
    assert first == second
    assert len({first, out, later}) == 3


def test_inside_a_host_is_an_interface_of_its_own():
    found = [message(0, 1, 1, 0.0, 1.0), message(0, 2, 1, 0.0, 1.0)]
    assert Traffic(found, [0, 0, 1]).alone_s() == pytest.approx([1.0, 1.0])


def test_equal_shares_have_equal_weights():
    found = [message(0, 1, 10, 0.0, 2.0), message(0, 2, 10, 0.0, 2.0), message(0, 3, 10, 2.0, 3.0)]
    assert message_weights(found, HOSTS) == pytest.approx([1.0, 1.0, 1.0])
    assert message_weights([], HOSTS) == []


@pytest.mark.parametrize("weights", [[2.0, 1.0, 1.0], [4.0, 1.0, 1.0], [1.0, 2.0, 4.0], [5.0, 5.0, 1.0]])
@pytest.mark.parametrize("outwards", [True, False])
def test_a_replay_ends_messages_when_they_ended(weights, outwards):
    """Three messages that leave a host together, or enter it, by unequal shares of 1 MB/s: they come one by one."""
    rate, size = 1e6, 500_000
    ends = shared(np.array(weights), size / rate)
    ranks = [[Op(name="work", kind="forward", start_s=0.0, end_s=1e-6, step=0)] for _ in HOSTS]
    for peer, end in zip((1, 2, 3), ends, strict=True):
        source, target = (0, peer) if outwards else (peer, 0)
        common = {"kind": "communication", "step": 0, "size_bytes": size, "start_s": 1e-6, "end_s": end}
        ranks[source].append(Op(name="send", collective="send", peer=target, **common))
        ranks[target].append(Op(name="recv", collective="recv", peer=source, **common))
    headers = [Header(rank=r, world_size=4, host=f"h{r}", groups={}) for r in HOSTS]
    trace = Trace([RankTrace(h, own) for h, own in zip(headers, ranks, strict=True)], aligned=True)
    flow = build(trace, 0)
    found = replay(flow, Links.uniform(4, rate)).end_s[flow.size_bytes > 0]
    recorded = [one.end_s for one in match(trace)]
    assert sorted(found) == pytest.approx(sorted(recorded), rel=0.03)
    assert np.abs(found - recorded).max() < 0.03 * max(recorded)
    assert sorted(ends)[0] < 0.9 * sorted(ends)[-1]


def shared(weights, seconds):
    """Ends of transfers that take so many seconds alone, by weighted shares."""
    left, ends, now = np.full(len(weights), seconds), np.zeros(len(weights)), 0.0
    while (runs := left > 1e-12).any():
        speed = np.where(runs, weights, 0.0) / weights[runs].sum()
        step = (left[runs] / speed[runs]).min()
        now, left = now + step, np.maximum(left - step * speed, 0.0)
        ends[runs & (left <= 1e-12)] = now
    return ends
