"""Links that became slow are seen from the kernel's counts, alike on all ranks, and planned around."""

import json

import pytest

from tests.runtime.collective.ranks import on_ranks
from wirewise.collective import network
from wirewise.errors import ProgramError
from wirewise.lab import Lab, Pairs, topology_of
from wirewise.runtime.collective import LinkMonitor, SlowLink
from wirewise.runtime.collective.link import EdgeStatistics

PLANNED = network(topology_of(Pairs(3, "400mbit", {})))


class Pretended:
    """A group whose kernel counts are given."""

    def __init__(self, group, looks):
        self._group, self._looks = group, iter(looks)
        self.rank, self.size = group.rank, group.size
        self.all_gather = group.all_gather

    def statistics(self):
        counts = next(self._looks)
        return [
            EdgeStatistics(
                source=self.rank, target=t, size_bytes=counts[self.rank, t][0], busy_s=counts[self.rank, t][1]
            )
            for t in range(self.size)
            if t != self.rank
        ]


def counts(**others):
    """Bytes and busy seconds of every edge: half a second at the full rate but for `others`, such as e01."""
    found = {(s, t): (50e6 * 0.957 * 0.5, 0.5) for s in range(3) for t in range(3)}
    return found | {(int(name[1]), int(name[2])): value for name, value in others.items()}


def test_slow_links_are_found_once_and_idle_ones_are_not():
    start = {(s, t): (0.0, 0.0) for s in range(3) for t in range(3)}
    first = counts(e01=(10e6 * 0.957 * 0.5, 0.5), e20=(1000.0, 0.01))
    second = {edge: (2 * size_bytes, 2 * busy_s) for edge, (size_bytes, busy_s) in first.items()}

    def run(group):
        watch = LinkMonitor(Pretended(group, [start, first, second]), PLANNED)
        return watch.poll(), watch.poll(), watch.network.rate(0, 1), watch.network.rate(1, 0)

    for slow, again, there, back in on_ranks(3, run):
        assert [(s.source, s.target, s.planned_bytes_per_s) for s in slow] == [(0, 1, 50e6)]
        assert slow[0].seen_bytes_per_s == pytest.approx(10e6)
        # It is as the network now says.
        assert again == []
        assert (there, back) == (pytest.approx(10e6), 50e6)


def test_a_network_of_other_ranks_is_refused():
    def run(group):
        with pytest.raises(ProgramError, match="expected the group's 2"):
            LinkMonitor(group, PLANNED)

    on_ranks(2, run)


_RANKS = """
import json, torch, torch.distributed as dist
from wirewise.collective import network
from wirewise.lab import Pairs, topology_of
from wirewise.runtime.collective import LinkMonitor, connect
dist.init_process_group("gloo")
with connect() as group:
    watch = LinkMonitor(group, network(topology_of(Pairs(3, "200mbit", {}))), slower=0.5)
    for _ in range(3):
        group.all_reduce(torch.ones(1_500_000))
    print(json.dumps(watch.poll()))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.lab
def test_a_slow_link_of_a_lab_is_named(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(_RANKS)
    with Lab(3, "200mbit", pairs={(0, 2): "50mbit"}) as lab:
        # A rank that waits for a processor slows its links too, for long even to a half of what they are.
        for _ in range(3):
            result = lab.run([str(script)], launcher="direct", timeout_s=60)
            assert result.ok, result.tails
            looks = [[SlowLink(*one) for one in json.loads(tail[-1])] for tail in result.tails]
            slow = {(one.source, one.target) for one in looks[0]}
            assert all(look == looks[0] for look in looks) and slow >= {(0, 2), (2, 0)}
            assert all(one.seen_bytes_per_s < 7e6 for one in looks[0] if {one.source, one.target} == {0, 2})
            if len(slow) == 2 and all(one.seen_bytes_per_s > 3.1e6 for one in looks[0]):
                break
    assert len(slow) == 2 and all(one.seen_bytes_per_s > 3.1e6 for one in looks[0])
