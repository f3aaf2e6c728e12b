"""Hosts on one machine, joined by a network whose links are shaped; and the same interface for plain loopback."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import msgspec

from wirewise import units
from wirewise.errors import LabError
from wirewise.lab import namespaces
from wirewise.lab.faults import Fault
from wirewise.lab.job import JobResult, Listener, Process, supervise
from wirewise.lab.namespaces import ip, tc

__all__ = ["HostBytes", "Lab", "Loopback", "interface_bytes"]

_PORT = 29511
_LATENCY = "50ms"
"""Longest time that a packet waits for tokens before it is dropped: the depth of the queue."""


class HostBytes(msgspec.Struct, frozen=True):
    """Bytes that a network interface has sent and received."""

    tx_bytes: int
    rx_bytes: int


def interface_bytes(interface: str | None = None) -> HostBytes | None:
    """Counters of an interface of the network namespace that this process lives in.

    Args:
        interface: Its name; None: the one that gloo was told to use, as in a lab. None is returned without one.
    """
    interface = interface or os.environ.get("GLOO_SOCKET_IFNAME")
    if interface is None:
        return None
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = numbers.split()
            return HostBytes(tx_bytes=int(fields[8]), rx_bytes=int(fields[0]))
    return None


class Lab:
    """A cluster on one machine: each host a network namespace, each link a token bucket in both directions.

    TCP, gloo and the limits are real: a transfer between two hosts reaches about 0.95 of the rate. Latency is that
    of the machine; it is not shaped.

    Args:
        hosts: Number of hosts, 1 to 200.
        link: Rate of every host's link, such as "200mbit".
        links: Rates of single hosts that differ.

    Raises:
        LabError: Namespaces or shaped links cannot be had here; the message says what is missing.
    """

    def __init__(self, hosts: int, link: str = "1gbit", links: Mapping[int, str] | None = None) -> None:
        if not 1 <= hosts <= 200:
            raise LabError(f"got {hosts} hosts; expected 1 to 200")
        wrong = sorted(set(links or {}) - set(range(hosts)))
        if wrong:
            raise LabError(f"links name host {wrong[0]}; expected hosts 0 to {hosts - 1}")
        self.num_hosts = hosts
        self.rates = [units.parse_rate((links or {}).get(h, link)) for h in range(hosts)]
        self.names = [f"{namespaces.owner_name()}-{_token(self)}h{h}" for h in range(hosts)]
        self._bridge = f"{namespaces.owner_name()}-{_token(self)}br"
        self._handlers: dict[int, Any] = {}
        self.network = "lab"

    def __enter__(self) -> Self:
        ok, reason = namespaces.available()
        if not ok:
            raise LabError(f"no lab here: {reason}")
        namespaces.clean()
        atexit.register(self.close)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, self._ended)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the hosts and remove the network; safe to call twice."""
        atexit.unregister(self.close)
        namespaces.remove([*self.names, self._bridge])
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _ended(self, number: int, frame: FrameType | None) -> None:
        self.close()
        os.kill(os.getpid(), number)

    def _build(self) -> None:
        ip("netns", "add", self._bridge)
        ip("-n", self._bridge, "link", "add", "name", "bridge", "type", "bridge")
        ip("-n", self._bridge, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            ip("netns", "add", name)
            ip("link", "add", "name", "net0", "netns", name, "type", "veth", "peer", "name", port, "netns", self._bridge)
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "net0")
            for device in ("lo", "net0"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
            for where, device in self._ends(host):
                tc("-n", where, "qdisc", "add", "dev", device, "root", *_bucket(self.rates[host]))

    def _ends(self, host: int) -> list[tuple[str, str]]:
        """Where a host's traffic leaves: its own end shapes what it sends, the bridge's end what it receives."""
        return [(self.names[host], "net0"), (self._bridge, f"port{host}")]

    def address(self, host: int) -> str:
        """Address of a host inside the lab."""
        return f"10.77.0.{host + 1}"

    def set_link(self, host: int, rate: str | float) -> None:
        """Change the rate of a host's link, also while a job runs."""
        self._check(host)
        self.rates[host] = units.parse_rate(rate)
        for where, device in self._ends(host):
            tc("-n", where, "qdisc", "change", "dev", device, "root", *_bucket(self.rates[host]))

    def kill(self, host: int) -> None:
        """End every process of a host at once, as when a machine dies."""
        self._check(host)
        namespaces.kill_all(self.names[host])

    def cut(self, host: int) -> None:
        """Take a host off the network without telling it; connections fall silent."""
        self._check(host)
        ip("-n", self._bridge, "link", "set", f"port{host}", "down")

    def heal(self, host: int) -> None:
        """Put a cut host back on the network."""
        self._check(host)
        ip("-n", self._bridge, "link", "set", f"port{host}", "up")

    def slow(self, host: int, factor: float) -> None:
        """Divide the rate of a host's link by `factor`."""
        if not factor > 0:
            raise LabError(f"slow factor is {factor}; expected a number above 0")
        self.set_link(host, self.rates[host] / factor)

    def counters(self) -> list[HostBytes]:
        """Bytes that each host has sent and received since the lab was built, headers included."""
        found = []
        for name in self.names:
            stats = json.loads(ip("-n", name, "-s", "-j", "link", "show", "dev", "net0"))[0]["stats64"]
            found.append(HostBytes(tx_bytes=stats["tx"]["bytes"], rx_bytes=stats["rx"]["bytes"]))
        return found

    def run(
        self,
        command: Sequence[str],
        *,
        processes_per_host: int = 1,
        launcher: str = "torchrun",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        listener: Listener | None = None,
        faults: Sequence[Fault] = (),
        timeout_s: float | None = None,
    ) -> JobResult:
        """Run one job over all hosts and wait for its end.

        Args:
            command: With "torchrun" and "direct" what follows `torchrun`: a script or `-m module`, and arguments.
            processes_per_host: Ranks on each host.
            launcher: "torchrun" starts one on each host; "direct" starts the ranks themselves with the variables
                that torchrun would set, and saves importing torch twice; "none" starts the command as it is.
            environment: Variables besides this process's own.
            folder: Takes one log file a host.
            listener: Hears every line, with the host's number.
            faults: What happens to which host, and when.
            timeout_s: The job is ended after so many seconds.

        Raises:
            LabError: The launcher is unknown.
        """
        processes = [
            Process(host, ["ip", "netns", "exec", self.names[host], *argv], variables)
            for host in range(self.num_hosts)
            for argv, variables in _ranks(
                host, self.num_hosts, processes_per_host, launcher, command, self.address(0), "net0"
            )
        ]
        return supervise(
            processes,
            environment=environment or {},
            folder=folder,
            listener=listener,
            timeline=[(f.at_s, lambda f=f: f.strike(self)) for f in faults],
            timeout_s=timeout_s,
        )

    def _check(self, host: int) -> None:
        if not 0 <= host < self.num_hosts:
            raise LabError(f"got host {host}; expected 0 to {self.num_hosts - 1}")


class Loopback:
    """The ranks of a job on this machine without any shaping; used, and labelled, where no lab can be had."""

    def __init__(self) -> None:
        self.network = "loopback"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(
        self,
        command: Sequence[str],
        *,
        processes: int,
        launcher: str = "torchrun",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        listener: Listener | None = None,
        timeout_s: float | None = None,
    ) -> JobResult:
        """Run one job of `processes` ranks and wait for its end; arguments as `Lab.run`."""
        ranks = _ranks(0, 1, processes, launcher, command, "127.0.0.1", "lo")
        return supervise(
            [Process(0, argv, variables) for argv, variables in ranks],
            environment=environment or {},
            folder=folder,
            listener=listener,
            timeline=[],
            timeout_s=timeout_s,
        )


def _ranks(
    host: int, hosts: int, per_host: int, launcher: str, command: Sequence[str], address: str, interface: str
) -> list[tuple[list[str], dict[str, str]]]:
    """Commands and variables of the processes to start on one host."""
    common = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
    port = str(_PORT if hosts > 1 else _free_port(address))
    if launcher == "none":
        return [(list(command), common)]
    if launcher == "torchrun":
        flags = [
            f"--nnodes={hosts}",
            f"--node-rank={host}",
            f"--nproc-per-node={per_host}",
            f"--master-addr={address}",
            f"--master-port={port}",
        ]
        return [([_python(), "-m", "torch.distributed.run", *flags, *command], common)]
    if launcher != "direct":
        raise LabError(f"unknown launcher {launcher!r}; expected torchrun, direct or none")
    return [
        (
            [_python(), *command],
            common
            | {
                "RANK": str(host * per_host + local),
                "LOCAL_RANK": str(local),
                "GROUP_RANK": str(host),
                "WORLD_SIZE": str(hosts * per_host),
                "LOCAL_WORLD_SIZE": str(per_host),
                "MASTER_ADDR": address,
                "MASTER_PORT": port,
            },
        )
        for local in range(per_host)
    ]


def _python() -> str:
    import sys

    return sys.executable


def _free_port(address: str) -> int:
    import socket

    with socket.socket() as probe:
        probe.bind((address if address.startswith("127.") else "", 0))
        return int(probe.getsockname()[1])


def _token(lab: object) -> str:
    """Tells the labs of one process apart."""
    return f"{id(lab) & 0xFFFFF:05x}"


def _bucket(bytes_per_s: float) -> list[str]:
    """A token bucket; it may burst for about 10 ms, so that short transfers are limited too."""
    burst = max(16_384, min(int(bytes_per_s * 0.01), 262_144))
    return ["tbf", "rate", f"{round(bytes_per_s * 8)}bit", "burst", f"{burst}b", "latency", _LATENCY]
