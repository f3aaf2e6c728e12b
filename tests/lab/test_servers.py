"""Servers of a lab: hosts behind a switch, one shaped and counted link from server to server."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.test_network import measured, shaped, streamed
from wirewise.collective import check, network, save
from wirewise.errors import LabError
from wirewise.lab import Lab, Servers
from wirewise.planners.collective import CollectiveProblem
from wirewise.planners.collective.blink import synthesize as blink

HALVES = (range(4), range(4, 8))


@pytest.mark.slow
@pytest.mark.lab
def test_the_uplink_is_slower_than_the_hosts_and_counts_what_passes() -> None:
    with Lab(4, "100mbit", servers=[(0, 2), (1, 3)], uplink="20mbit") as lab:
        assert measured(lab, 1_000_000, receives=0, sends=2) == shaped(12.5e6)
        assert max(counts.tx_bytes for counts in lab.uplink_counters()) < 10_000
        assert streamed(lab, 500_000, receives=0, sends=1) == shaped(2.5e6)
        first, second = lab.uplink_counters()
        assert second.tx_bytes == pytest.approx(500_000, rel=0.08)
        # The other way only acknowledgements, which both ends of the way count alike.
        assert first.tx_bytes < 60_000
        assert second.tx_bytes == pytest.approx(first.rx_bytes, abs=2000)
        lab.cut(1)
        lab.heal(1)
        assert measured(lab, 600_000, receives=0, sends=1) == shaped(2.5e6)


def test_servers_as_a_topology() -> None:
    made = network(Servers(4, [(0, 1), (2, 3)], "80mbit").topology([50e6] * 4))
    assert (made.rate(0, 1), made.rate(0, 2)) == (50e6, 10e6)
    assert len(made.route(0, 2) or ()) == 4


@pytest.mark.parametrize("servers", [[(0, 1, 2, 3)], [(0, 1), (2,)], [(0, 1), (1, 2, 3)]])
def test_hosts_in_no_server_or_in_two_are_refused(servers: list[tuple[int, ...]]) -> None:
    with pytest.raises(LabError, match="at least two, with each of the hosts 0 to 3 once"):
        Lab(4, servers=servers)


@pytest.mark.lab
def test_labs_without_servers_have_no_uplinks() -> None:
    with pytest.raises(LabError, match="have no switch"):
        Lab(2, pairs={}, servers=[(0,), (1,)])
    with Lab(1) as lab, pytest.raises(LabError, match="build it with `servers`"):
        lab.uplink_counters()


_RANKS = """
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from wirewise.collective import load
from wirewise.runtime.collective import connect

def counted(name):
    # The counters are read while no rank sends anything.
    dist.barrier()
    time.sleep(0.05)
    if dist.get_rank() == 0:
        print(name, flush=True)
    deadline = time.monotonic() + 20
    while not Path(sys.argv[2], name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)

dist.init_process_group("gloo")
program = load(sys.argv[1])
tensor = (torch.arange(250_000) % 1021 + dist.get_rank()).double()
expected = 8 * (tensor - dist.get_rank()) + 28
with connect() as group:
    group.barrier()
    before = {e.target: e.size_bytes for e in group.statistics() if e.source == group.rank}
    counted("before")
    group.all_reduce(tensor, program=program)
    counted("after")
    sent = {e.target: e.size_bytes - before[e.target] for e in group.statistics() if e.source == group.rank}
    print(json.dumps({"right": torch.equal(tensor, expected), "sent": sent}), flush=True)
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.lab
def test_b5_three_phases_over_two_servers_of_four_hosts(tmp_path: Path) -> None:
    size_bytes, readings = 2_000_000, {}
    (tmp_path / "ranks.py").write_text(_RANKS)
    with Lab(8, "400mbit", servers=HALVES, uplink="100mbit") as lab:
        assert lab.servers is not None
        made = network(lab.servers.topology(lab.rates))
        program = blink(
            CollectiveProblem(network=made, collective="all_reduce", size_bytes=size_bytes), servers=HALVES
        )
        check(program)
        save(program, tmp_path / "program.json")

        def listen(host: int, line: str) -> None:
            if line in ("before", "after"):
                readings[line] = lab.uplink_counters()
                (tmp_path / line).touch()

        words = [str(tmp_path / "ranks.py"), str(tmp_path / "program.json"), str(tmp_path)]
        result = lab.run(words, launcher="direct", listener=listen, timeout_s=60)
    assert result.ok, result.tails
    found = [json.loads(tail[-1]) for tail in result.tails]
    assert all(one["right"] for one in found)
    payload = Counter[int]()
    for rank, one in enumerate(found):
        for target, sent in one["sent"].items():
            payload[rank // 4] += sent if int(target) // 4 != rank // 4 else 0
    for server, (before, after) in enumerate(zip(readings["before"], readings["after"], strict=True)):
        assert payload[server] == size_bytes  # 2 M (n - 1) / n with two servers.
        # Headers of TCP, IP and Ethernet, acknowledgements and the last words of the barriers besides.
        assert payload[server] <= (after - before).tx_bytes <= 1.06 * payload[server]
