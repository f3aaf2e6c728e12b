from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.tiers import slow
from tests.lab.traffic import traffic
from wirewise import units
from wirewise.errors import InputError, LabError
from wirewise.lab import HostFault, Lab, Loopback, namespaces

pytestmark = pytest.mark.lab


def measured(lab: Lab, size_bytes: int, *, receives: int = 0, sends: int = 1) -> float:
    """Bytes per second of a TCP stream, the fastest one of four: processes that wait for a processor slow one down."""
    return max(streamed(lab, size_bytes, receives=receives, sends=sends) for _ in range(4))


def shaped(rate: float) -> Any:
    """Rates of a link that lets `rate` through: at most a tenth more; busy processors leave half of it."""
    return pytest.approx(0.8 * rate, abs=0.3 * rate)


def streamed(lab: Lab, size_bytes: int, *, receives: int = 0, sends: int = 1) -> float:
    """Bytes per second of one TCP stream."""
    commands = traffic(lab.address(receives), size_bytes, receives=receives, sends=sends, hosts=lab.num_hosts)
    result = lab.run(commands, launcher="none", timeout_s=30)
    assert result.ok, result
    return float(result.tails[receives][0])


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize(
    ("rate", "size_bytes"),
    [
        # The first would be passed at once by a bucket of 50 ms.
        ("10mbit", 60_000),
        slow(("10mbit", 500_000)),
        ("50mbit", 2_000_000),
        slow(("200mbit", 6_000_000)),
        slow(("1gbit", 25_000_000)),
    ],
)
def test_tcp_gets_the_nominal_rate(rate: str, size_bytes: int) -> None:
    with Lab(2, rate) as lab:
        assert measured(lab, size_bytes) == shaped(units.parse_rate(rate))


def test_both_ends_of_a_connection_use_cubic() -> None:
    controls = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if "cubic" not in controls:
        pytest.skip(f"the kernel has {', '.join(controls)} and no cubic, which the lab then cannot name")
    ends = {
        "accept": "with socket.create_server((sys.argv[2], 5000)) as server: peer, _ = server.accept()",
        # Python loads on busy processors before one of them listens.
        "connect": """
for _ in range(400):
    try:
        peer = socket.create_connection((sys.argv[2], 5000))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
""",
    }
    tell = "print(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())"
    with Lab(2, "1gbit") as lab:
        commands = [
            [sys.executable, "-S", "-c", f"import socket, sys, time\n{how}\n{tell}", name, lab.address(0)]
            for name, how in ends.items()
        ]
        result = lab.run(commands, launcher="none", timeout_s=30)
    assert result.ok, result
    assert [tail[0] for tail in result.tails] == ["cubic", "cubic"]


@pytest.mark.slow
def test_links_differ_in_both_directions_and_change() -> None:
    with Lab(3, "100mbit", {1: "20mbit"}) as lab:
        assert lab.rates == [12.5e6, 2.5e6, 12.5e6]
        assert measured(lab, 500_000, receives=0, sends=1) == shaped(2.5e6)
        assert measured(lab, 500_000, receives=1, sends=2) == shaped(2.5e6)
        assert measured(lab, 2_000_000, receives=0, sends=2) == shaped(12.5e6)
        lab.set_link(1, "50mbit")
        assert measured(lab, 1_000_000, receives=0, sends=1) == shaped(6.25e6)
        lab.slow(1, 5)
        assert measured(lab, 200_000, receives=0, sends=1) == shaped(1.25e6)
        lab.heal(1)
        assert measured(lab, 1_000_000, receives=1, sends=0) == shaped(6.25e6)


def test_a_link_changes_while_a_job_runs() -> None:
    with Lab(2, "10mbit") as lab:
        # At the first rate the job would take 24 seconds and be ended.
        faults = [HostFault(kind="link", host=h, at_s=0.3, rate="200mbit") for h in (0, 1)]
        commands = traffic(lab.address(0), 30_000_000, receives=0, sends=1)
        result = lab.run(commands, launcher="none", timeout_s=20, faults=faults)
        assert result.ok
        assert float(result.tails[0][0]) > 1.5 * units.parse_rate("10mbit")


def test_a_busy_link_that_gets_slower_carries_on() -> None:
    with Lab(2, "200mbit") as lab:
        # Segments of 20 kB wait in its queue then, more than its bucket holds afterwards.
        faults = [HostFault(kind="link", host=1, at_s=0.8, rate="50mbit")]
        commands = traffic(lab.address(0), 30_000_000, receives=0, sends=1)
        assert lab.run(commands, launcher="none", timeout_s=30, faults=faults).ok


def test_counters_are_the_bytes_of_the_payload() -> None:
    payload = 4_000_000
    with Lab(3, "500mbit") as lab:
        before = lab.counters()
        streamed(lab, payload)
        receiver, sender, idle = (now - then for now, then in zip(lab.counters(), before, strict=True))
    for count in (receiver.rx_bytes, sender.tx_bytes):
        assert payload <= count <= payload * 1.06 + 65_536
    assert receiver.tx_bytes <= payload * 0.06 + 65_536
    assert idle.tx_bytes + idle.rx_bytes < 4096


def test_a_cut_host_falls_silent_until_it_is_healed() -> None:
    with Lab(2, "50mbit") as lab:
        lab.cut(1)
        job = lab.launch(traffic(lab.address(0), 100_000, receives=0, sends=1), launcher="none", timeout_s=30)
        time.sleep(0.3)
        assert job.running
        assert lab.counters()[0].rx_bytes < 4096
        lab.heal(1)
        assert job.wait().ok


def test_kill_ends_every_process_of_a_host_and_the_job_after_the_grace() -> None:
    # Two processes on a host have said that they are there.
    nested = "echo up; setsid sleep 60 & wait"
    with Lab(3) as lab:
        job = lab.launch(["sh", "-c", nested], launcher="none", grace_s=0.1, timeout_s=30)
        assert until(lambda: all(len(lab.processes(h)) >= 2 for h in range(3)))
        lab.kill(2)
        assert lab.processes(2) == []
        result = job.wait()
        assert until(lambda: not any(lab.processes(h) for h in range(3)))
    assert (result.first_failed, result.exit_code, result.exit_codes[2]) == (2, 137, -9)
    assert result.tails == [["up"]] * 3
    assert not result.timed_out


def test_faults_of_a_timeline_strike_their_hosts() -> None:
    with Lab(2) as lab:
        kill = HostFault(kind="kill", host=1, at_s=0.2)
        result = lab.run(["sleep", "60"], launcher="none", faults=[kill], grace_s=0.0, timeout_s=30)
    assert result.first_failed == 1
    assert result.seconds >= 0.2


def test_slow_processors_stop_processes_for_a_part_of_the_time() -> None:
    count = "import time\nend = time.time() + 1.0\nn = 0\nwhile time.time() < end: n += 1\nprint(n)"
    with Lab(2) as lab:
        lab.slow(1, 8, resource="cpu")
        # Others may keep the fast host from its processor, or whoever is to stop the slow one.
        for _ in range(4):
            result = lab.run([sys.executable, "-S", "-c", count], launcher="none", timeout_s=30)
            fast, slow = (int(tail[0]) for tail in result.tails)
            if slow < fast / 2:
                break
        lab.heal(1)
        assert lab.run(["true"], launcher="none").ok
    assert slow < fast / 2


@pytest.mark.slow
def test_two_labs_in_one_process_are_apart() -> None:
    with Lab(2, "50mbit") as first, Lab(2, "20mbit") as second:
        assert not set(first.names) & set(second.names)
        assert measured(second, 500_000) == shaped(2.5e6)
        assert first.counters()[0].rx_bytes < 4096
        assert measured(first, 500_000) == shaped(6.25e6)


def test_two_jobs_run_in_one_lab_at_once() -> None:
    with Lab(2) as lab:
        first = lab.launch(["sleep", "30"], launcher="none", timeout_s=60)
        assert lab.run(["true"], launcher="none").ok
        assert first.running
        first.stop()
        assert first.wait().exit_codes == [-15, -15]


def test_closing_ends_what_runs() -> None:
    with Lab(2) as lab:
        job = lab.launch(["sleep", "60"], launcher="none")
        holders = [holder.pid for holder in lab._holders]
    assert not job.running
    assert not any(Path(f"/proc/{pid}").exists() for pid in holders)
    lab.close()
    with pytest.raises(LabError, match="the lab is not open"):
        lab.counters()


def test_an_error_inside_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), Lab(2) as lab:
        lab.launch(["sleep", "60"], launcher="none")
        raise ZeroDivisionError


def test_a_lab_needs_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of an ordinary user, which is open to root too."""
    try:
        namespaces._probe(as_root=False)
    except LabError as error:
        pytest.skip(f"no user namespaces here: {error}")
    monkeypatch.setattr(namespaces, "choose", lambda: False)
    with Lab(2, "50mbit") as lab:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        assert not any(name in listed for name in lab.names)
        assert measured(lab, 1_000_000) == shaped(6.25e6)
        lab.set_link(0, "20mbit")
        assert measured(lab, 500_000) == shaped(2.5e6)
        assert lab.counters()[1].tx_bytes > 1_500_000
        job = lab.launch(["sleep", "60"], launcher="none", grace_s=0.0)
        assert until(lambda: all(map(lab.processes, (0, 1))))
        lab.kill(1)
        assert job.wait().first_failed == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lab(0),
        lambda: Lab(201),
        lambda: Lab(2, links={2: "1gbit"}),
        lambda: Lab(2, "fast"),
        lambda: Lab(2, links={0: "0mbit"}),
    ],
)
def test_a_lab_that_cannot_be_is_refused(make: Callable[[], Lab]) -> None:
    with pytest.raises((LabError, InputError), match="expected"):
        make()


def test_unknown_hosts_and_commands_are_refused() -> None:
    with Lab(2) as lab:
        for call in (lab.kill, lab.cut, lab.heal, lab.processes):
            with pytest.raises(LabError, match="got host 2; expected 0 to 1"):
                call(2)
        with pytest.raises(LabError, match="got host -1"):
            lab.set_link(-1, "1gbit")
        with pytest.raises(LabError, match="by at least 1"):
            lab.slow(0, 0.5)
        with pytest.raises(LabError, match="expected link, cpu or both"):
            lab.slow(0, 2, resource="disk")
        with pytest.raises(LabError, match="got host 7"):
            lab.launch(["true"], launcher="none", faults=[HostFault(kind="kill", host=7, at_s=0)])
        with pytest.raises(LabError, match="commands for 1 hosts; expected 2"):
            lab.launch([["true"]], launcher="none")
        with pytest.raises(LabError, match="unknown launcher 'mpirun'"):
            lab.launch(["true"], launcher="mpirun")


def test_a_command_that_does_not_exist_fails_with_its_name() -> None:
    with Lab(1) as lab:
        result = lab.run(["no-such-command"], launcher="none", timeout_s=30)
    assert not result.ok
    assert any("no-such-command" in line for line in result.tails[0])


def test_labs_of_threads_do_not_meet() -> None:
    failed: list[BaseException] = []

    def use() -> None:
        try:
            with Lab(2, "100mbit") as lab:
                assert lab.run(["true"], launcher="none").ok
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use, name=f"lab-{n}") for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


_RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((250_000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
from wirewise.lab import interface_bytes
print("sum", x[0].item(), interface_bytes() is not None)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "hosts"), [("torchrun", 2), slow(("direct", 2))])
def test_ranks_form_a_group_over_the_links(launcher: str, hosts: int, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(_RANKS)
    heard: list[tuple[int, str]] = []
    with Lab(hosts, "200mbit") as lab:
        result = lab.run(
            [str(script)],
            launcher=launcher,
            folder=tmp_path / "logs",
            listener=lambda host, line: heard.append((host, line)),
            timeout_s=90,
        )
        assert result.ok, result
        # A ring all-reduce sends each host's megabyte once and receives it once.
        assert all(1_000_000 <= bytes_.tx_bytes <= 1_200_000 for bytes_ in lab.counters())
    assert sorted(line for line in heard if line[1].startswith("sum")) == [
        (host, "sum 3.0 True") for host in range(hosts)
    ]
    assert "sum 3.0 True" in (tmp_path / "logs" / "host-1.log").read_text()


def test_loopback_is_labelled_and_has_no_counters(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os\nfrom wirewise.lab import interface_bytes\n"
        "print(os.environ['RANK'], os.environ['WORLD_SIZE'], interface_bytes())"
    )
    with Loopback() as network:
        assert network.network == "loopback"
        result = network.run([str(script)], processes_per_host=3, launcher="direct", timeout_s=60)
    assert [tail[-1] for tail in result.tails] == [f"{rank} 3 None" for rank in range(3)]


@pytest.mark.parametrize(("rate", "shown"), [("1bit", "0.125"), ("1000tbit", "1.25e+14")])
def test_rates_that_cannot_be_shaped_are_refused(rate: str, shown: str) -> None:
    with pytest.raises(LabError) as caught, Lab(1, rate):
        pytest.fail("the lab was built")
    assert f"host 0 has {shown} bytes per second; expected 1 to 4e+12" in str(caught.value)
