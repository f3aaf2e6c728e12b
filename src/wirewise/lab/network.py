"""Hosts on one machine, joined by a network of shaped links."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self, Unpack

from wirewise import units
from wirewise.errors import LabError
from wirewise.hosts.job import JobOptions, RunningJob
from wirewise.hosts.launch import Command, HostNetwork, Rendezvous, job_processes
from wirewise.hosts.processes import signal_all
from wirewise.lab import namespaces, shaping
from wirewise.lab.counters import HostBytes, read_counters
from wirewise.lab.faults import HostFault
from wirewise.lab.pairs import Pairs, pairs_of
from wirewise.lab.servers import Servers
from wirewise.lab.throttle import Throttle
from wirewise.topology import Topology

__all__ = ["Lab"]

_FIRST_PORT = 29511
_INTERFACE = "net0"
_SUBNET = "10.77.0.0/24"
_MAX_HOSTS = 200
_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


class Lab(HostNetwork):
    """Cluster on one machine: each host a network namespace, each link a token bucket in both directions.

    TCP, gloo and the limits are real: from 10 Mbit/s to 1 Gbit/s one TCP stream carries 0.95 to 0.96 of the rate as
    payload, the rest is headers. Links shape bandwidth only: the latency is that of the machine, some tens of
    microseconds. One lab may run several jobs, one after another or concurrently.

    Args:
        hosts: Number of hosts, 1 to 200.
        link: Rate of every host's link, such as "200mbit"; with `pairs`, of every pair not named there.
        links: Rates of individual hosts, by host.
        pairs: Rates of pairs of hosts, the same both ways: each pair of hosts then has a dedicated link, and nothing
            is shared.
        servers: Hosts of each server, which share a switch and one link to the other servers. Defaults to one switch
            for all hosts.
        uplink: Rate of that link of each server.

    Raises:
        LabError: Namespaces or shaped links are not available here; the message says what is missing.
    """

    network = "lab"

    def __init__(
        self,
        hosts: int,
        link: str | float = "1gbit",
        links: Mapping[int, str | float] | None = None,
        pairs: Mapping[tuple[int, int], str | float] | None = None,
        *,
        servers: Sequence[Sequence[int]] = (),
        uplink: str | float = "1gbit",
    ) -> None:
        if not 1 <= hosts <= _MAX_HOSTS:
            raise LabError(f"got {hosts} hosts; expected 1 to {_MAX_HOSTS}")
        wrong = sorted(set(links or {}) - set(range(hosts)))
        if wrong:
            raise LabError(f"links name host {wrong[0]}; expected hosts 0 to {hosts - 1}")
        if pairs is not None and links:
            raise LabError("got links and pairs; hosts that are linked in pairs have no link that all share")
        if pairs is not None and servers:
            raise LabError("got pairs and servers; hosts that are linked in pairs have no switch")
        self.num_hosts = hosts
        self.servers = Servers(hosts, servers, uplink) if servers else None
        """Which hosts share a switch; all share one if None."""
        self.pairs = None if pairs is None else Pairs(hosts, link, pairs)
        """Rates of pairs of hosts; None if each host has one link to all."""
        self.rates = [units.parse_rate((links or {}).get(h, link)) for h in range(hosts)]
        """Bytes per second of each host's link, faults left out; with pairs, of all its links together."""
        if self.pairs is not None:
            self.rates = self.pairs.totals()
        base = f"{namespaces.owner_name()}-{namespaces.new_token()}"
        self.names = [f"{base}h{h}" for h in range(hosts)]
        self._bridge = f"{base}br"
        self._ports = itertools.count(_FIRST_PORT)
        self._owner = os.getpid()
        self._realm: namespaces.NamespaceScope | None = None
        self._holders: list[subprocess.Popen[str]] = []
        """One process in each host's namespace; with servers, one more in that of the switches."""
        self._shaped: dict[tuple[str, str], float] = {}
        """Bytes per second of each shaped interface, by its namespace and name."""
        self._throttles: dict[int, Throttle] = {}
        self._jobs: list[RunningJob] = []
        self._handlers: list[int] = []

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Build a lab for hosts around one switch, or for hosts linked pairwise.

        Raises:
            LabError: The topology is neither; the message names the obstacle.
        """
        if len(topology.switches) != 1 or topology.devices:
            rates = pairs_of(topology).rates
            return cls(len(topology.hosts), pairs=rates)
        by_end = {
            end: link.bandwidth_bytes_per_s for link in topology.links for end in (link.source, link.target)
        }
        switch = topology.switches[0].name
        if any(switch not in (link.source, link.target) for link in topology.links):
            raise LabError(
                f"topology {topology.name!r} has a switch and links past it; the lab builds one or the other"
            )
        return cls(len(topology.hosts), links={n: by_end[host.name] for n, host in enumerate(topology.hosts)})

    def __enter__(self) -> Self:
        try:
            as_root = namespaces.choose()
        except LabError as error:
            raise LabError(f"no lab here: {error}") from None
        if as_root:
            namespaces.clean()
        atexit.register(self.close)
        self._catch_signals()
        try:
            self._realm = namespaces.NamespaceScope([*self.names, self._bridge], as_root=as_root)
            self._build(self._realm)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process of the hosts and remove the network; safe to call twice."""
        if os.getpid() != self._owner:
            return  # a forked child must not take its parent's network away
        atexit.unregister(self.close)
        for throttle in self._throttles.values():
            throttle.stop()
        self._throttles = {}
        for job in self._jobs:
            job.stop()
        self._jobs = []
        if self._realm is not None:
            self._realm.close()
            self._realm = None
        for holder in self._holders:
            holder.communicate()
        self._holders = []
        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL)
        self._handlers = []

    def _catch_signals(self) -> None:
        """Unwind on a signal that would end this process at once; a program's own handlers stay."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, _leave)
                    self._handlers.append(number)

    def _build(self, realm: namespaces.NamespaceScope) -> None:
        realm.ip(lines=[f"netns add {name}" for name in [*self.names, self._bridge]])
        realm.ip(
            lines=[
                f"link add name {_INTERFACE} netns {name} type veth peer name port{host} netns {self._bridge}"
                for host, name in enumerate(self.names)
            ]
        )
        for host, name in enumerate(self.names):
            realm.ip("-n", name, lines=_host_devices(self.address(host)))
            self._holders.append(realm.hold(name))
        realm.ip("-n", self._bridge, lines=self._bridge_devices())
        if self.servers is not None:
            self._holders.append(realm.hold(self._bridge))
            self._shape_uplinks(self.servers)
        for host, rate in enumerate(self.rates):
            if self.pairs is None:
                self._shape(host, rate, "add")
            else:
                realm.tc("-n", self.names[host], lines=self.pairs.build(host, _INTERFACE, self.address))
                self._limit_packets(host)

    def _shape(self, host: int, bytes_per_s: float, verb: str) -> None:
        shaping.checked(bytes_per_s, f"the link of host {host}")
        slowest = bytes_per_s if self.servers is None else min(bytes_per_s, self.servers.uplink_bytes_per_s)
        # A host's own end shapes what it sends, the bridge's end what it receives.
        for where, device in ((self.names[host], _INTERFACE), (self._bridge, f"port{host}")):
            self._bucket(where, device, bytes_per_s, slowest, verb)

    def _shape_uplinks(self, servers: Servers) -> None:
        rate = shaping.checked(servers.uplink_bytes_per_s, "the uplink of each server")
        for device in itertools.chain(*servers.interfaces):
            self._bucket(self._bridge, device, rate, rate, "add")

    def _bucket(self, where: str, device: str, bytes_per_s: float, slowest: float, verb: str) -> None:
        """Shape what an interface sends; its packets fit into the bucket of the slowest link on their way."""
        # A segment larger than the burst would be cut into packets, each waiting on a timer of its own.
        segment = str(min(65_536, shaping.burst_bytes(slowest) * 4 // 5))
        self._open().ip("-n", where, "link", "set", "dev", device, "gso_max_size", segment)
        bucket = " ".join(shaping.bucket(bytes_per_s))
        lines = [f"qdisc {verb} dev {device} root {bucket}"]
        if bytes_per_s < self._shaped.get((where, device), 0.0):
            # A segment that is queued and larger than the new bucket would block the queue for ever. So the queue goes,
            # as that of a link which renegotiates its speed, and TCP sends again.
            lines = [f"qdisc del dev {device} root", f"qdisc add dev {device} root {bucket}"]
        self._open().tc("-n", where, lines=lines)
        self._shaped[where, device] = bytes_per_s

    def address(self, host: int) -> str:
        """Address of a host within the lab."""
        return f"10.77.0.{host + 1}"

    def set_link(self, host: int, rate: str | float) -> None:
        """Change the rate of a host's link, also while a job runs.

        Raises:
            LabError: The hosts are linked pairwise; use `set_pair`.
        """
        self._check(host)
        if self.pairs is not None:
            raise LabError(f"host {host} has a link to each other host; say which with `set_pair`")
        bytes_per_s = units.parse_rate(rate)
        self._shape(host, bytes_per_s, "change")
        self.rates[host] = bytes_per_s

    def set_pair(self, pair: tuple[int, int], rate: str | float) -> None:
        """Change the rate of the link between two hosts, both ways, also while a job runs.

        Raises:
            LabError: The hosts of this lab are not linked pairwise.
        """
        if self.pairs is None:
            raise LabError(
                "each host of this lab has one link; change it with `set_link`, or build it with pairs"
            )
        self.pairs.set(pair, rate)
        self.rates = self.pairs.totals()
        for host in pair:
            self._shape_pairs(host)

    def _shape_pairs(self, host: int) -> None:
        assert self.pairs is not None
        for source, line in self.pairs.changes(host, _INTERFACE):
            self._open().tc("-n", self.names[source], lines=[line])
        self._limit_packets(host)

    def _limit_packets(self, host: int) -> None:
        assert self.pairs is not None
        most = str(self.pairs.segment_bytes(host))
        self._open().ip("-n", self.names[host], "link", "set", "dev", _INTERFACE, "gso_max_size", most)

    def processes(self, host: int) -> list[int]:
        """Ids of all processes on a host."""
        self._check(host)
        self._open()
        return namespaces.processes_of(self._holders[host].pid)

    def inside(self, host: int, argv: Sequence[str]) -> list[str]:
        """Command that runs another one on a host, from outside of the lab."""
        self._check(host)
        return self._open().inside(self.names[host], argv)

    def kill(self, host: int) -> None:
        """Kill every process of a host at once, as when a machine dies."""
        while self._signal(host, signal.SIGKILL):
            pass

    def stop(self, host: int) -> None:
        """Stop every process of a host (SIGSTOP) until `heal`; its connections stay open and silent."""
        self._signal(host, signal.SIGSTOP)

    def cut(self, host: int) -> None:
        """Disconnect a host from the network silently; connections stop responding."""
        self._check(host)
        self._open().ip("-n", self._bridge, "link", "set", f"port{host}", "nomaster")

    def heal(self, host: int) -> None:
        """Reconnect a cut host, restore a slowed one's speed, and resume a stopped one."""
        self._check(host)
        self._open().ip("-n", self._bridge, "link", "set", f"port{host}", "master", self._switch(host))
        self.slow(host, 1.0, resource="both")
        self._signal(host, signal.SIGCONT)

    def _signal(self, host: int, number: int) -> int:
        """Signal every process of a host; returns their number."""
        pids = self.processes(host)
        return signal_all(pids, number, partial(namespaces.shares_network, self._holders[host].pid))

    def slow(self, host: int, factor: float, resource: str = "link") -> None:
        """Slow a host down by `factor`, relative to its full speed; 1 restores it.

        Args:
            host: Index of the host.
            factor: Factor of at least 1.
            resource: "link": its rate is divided. "cpu": its processes are stopped for a part of the time (emulated,
                see `Throttle`). "both": both.
        """
        self._check(host)
        if resource not in ("link", "cpu", "both") or not factor >= 1:
            raise LabError(f"got slow {resource!r} by {factor}; expected link, cpu or both, by at least 1")
        if resource != "cpu" and self.pairs is not None:
            self.pairs.slowed[host] = factor
            self._shape_pairs(host)
        elif resource != "cpu":
            self._shape(host, self.rates[host] / factor, "change")
        if resource != "link":
            throttle = self._throttles.pop(host, None)
            if throttle is not None:
                throttle.stop()
            if factor > 1:
                self._throttles[host] = Throttle(partial(self._signal, host), factor)

    def counters(self) -> list[HostBytes]:
        """Bytes that each host has sent and received since the lab was built."""
        self._open()
        files = (Path(f"/proc/{holder.pid}/net/dev") for holder in self._holders[: self.num_hosts])
        return [read for file in files if (read := read_counters(file, _INTERFACE)) is not None]

    def uplink_counters(self) -> list[HostBytes]:
        """Bytes that left and entered each server since the lab was built; see `HostBytes` for headers.

        Raises:
            LabError: This lab has no servers.
        """
        self._open()
        if self.servers is None:
            raise LabError("this lab has no servers, so no uplinks; build it with `servers`")
        return self.servers.counters(Path(f"/proc/{self._holders[self.num_hosts].pid}/net/dev"))

    def launch(
        self,
        command: Command,
        *,
        processes_per_host: int = 1,
        launcher: str = "torchrun",
        faults: Sequence[HostFault] = (),
        **options: Unpack[JobOptions],
    ) -> RunningJob:
        """Start one job over all hosts; arguments as in `HostNetwork.launch`.

        Args:
            command: Command for all hosts, or a list of one for each.
            processes_per_host: Ranks on each host.
            launcher: "torchrun", "direct" or "none".
            faults: Faults to inject, with their hosts and times.
            options: Further arguments of `RunningJob`.

        Raises:
            LabError: The command cannot be started, a fault names no host of this lab, or the lab is closed.
        """
        realm = self._open()
        for fault in faults:
            self._check(fault.host)
        first = Rendezvous(0, self.num_hosts, _INTERFACE, self.address(0), next(self._ports))
        processes = [
            replace(process, argv=realm.inside(self.names[process.host], process.argv))
            for process in job_processes(first, command, per_host=processes_per_host, launcher=launcher)
        ]
        timeline = [(f.at_s, partial(f.inject, self)) for f in faults]
        job = RunningJob(processes, timeline=timeline, **options)
        self._jobs = [*(j for j in self._jobs if j.running), job]
        return job

    def _switch(self, host: int) -> str:
        """Name of the bridge that a host hangs on."""
        return "bridge" if self.servers is None else self.servers.switch(host)

    def _bridge_devices(self) -> list[str]:
        lines = [
            "link add name bridge type bridge mcast_snooping 0",
            "link set dev bridge addrgenmode none",
            "link set dev bridge up",
            *(self.servers.devices() if self.servers is not None else ()),
        ]
        for host in range(self.num_hosts):
            lines.append(f"link set dev port{host} addrgenmode none")
            lines.append(f"link set dev port{host} master {self._switch(host)} up")
        return lines

    def _open(self) -> namespaces.NamespaceScope:
        if self._realm is None:
            raise LabError("the lab is not open; use it as `with Lab(...) as lab:`")
        return self._realm

    def _check(self, host: int) -> None:
        if not 0 <= host < self.num_hosts:
            raise LabError(f"got host {host}; expected 0 to {self.num_hosts - 1}")


def _host_devices(address: str) -> list[str]:
    # Without an address of their own kind IPv6 neighbours stay silent, and the counters hold nothing but the
    # job's bytes.
    return [
        f"addr add {address}/24 dev {_INTERFACE}",
        f"link set dev {_INTERFACE} addrgenmode none",
        "link set dev lo up",
        f"link set dev {_INTERFACE} up",
        *_congestion_control(address),
    ]


def _congestion_control(address: str) -> list[str]:
    # With BBR, the default of some kernels, one all-reduce of gloo takes 610 to 840 ms on 50 Mbit/s, with cubic 610 ms
    # (see `leave_bbr`). A namespace takes over the kernel's default, and only its routes can name another.
    if "cubic" not in _CONGESTION_CONTROLS.read_text().split():
        return []
    return [f"route replace {_SUBNET} dev {_INTERFACE} scope link src {address} congctl cubic"]


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
