"""Real Slurm on the hosts of a lab: the controller on a separate host, a daemon on each of the others."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from wirewise.errors import InputError, LabError
from wirewise.hosts import processes
from wirewise.hosts.job import Process, RunningJob
from wirewise.lab import namespaces
from wirewise.lab.network import Lab

__all__ = ["SlurmCluster", "slurm_available"]

_PROGRAMS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"}
_READY_S = 90.0
_CALL_S = 60.0
_LOOK_S = 0.1
_CLOCK_APART_S = 1_000_000

# The first line of each pair works where a container has no control groups of its own.
_CONFIGURATION = """\
ClusterName=wirewise
SlurmctldHost=head({head})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=10
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=100000
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
_CONTROL_GROUPS = """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
"""
_ENTER = """
hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount --bind "$2/local-$1" "$2/local" && shift 2 && exec "$@"
"""
"""Gives a process in namespaces of its own the name of its host, the names of all others, and its host's own folder."""


def slurm_available() -> tuple[bool, str]:
    """Whether Slurm can run in a lab here, or what is missing; never raises."""
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        return False, f"install {' and '.join(missing)}"
    usable, how = namespaces.available()
    if usable and how != "as root":
        return False, "its daemons need root"
    return usable, how


@lru_cache
def _clocks_available() -> bool:
    """Whether processes can have a monotonic clock of their own here."""
    argv = ["unshare", "--time", "--monotonic=1", "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


class SlurmCluster:
    """Slurm cluster of several hosts on one machine, for tests; a context manager.

    Hosts are those of a lab, named h0, h1, ..., with separate monotonic clocks if the kernel supports time
    namespaces; a further host, named head, has the controller and is the login host. All see this machine's files,
    except `local` in the cluster's folder, which is separate for each host. There are two partitions: main, and
    urgent, whose jobs preempt and requeue those of main.

    Args:
        hosts: Number of compute hosts.
        link: Rate of each host's link, such as "1gbit".
        cpus: CPUs that each host reports, regardless of the machine.

    Raises:
        InputError: No host, no CPU, or an invalid rate.
        LabError: Slurm or a lab is not available here, or a daemon did not start.
    """

    def __init__(self, hosts: int = 3, link: str | float = "1gbit", *, cpus: int = 4) -> None:
        if hosts < 1 or cpus < 1:
            raise InputError(f"got {hosts} hosts of {cpus} processors for Slurm; expected at least 1 of each")
        self.names = [f"h{host}" for host in range(hosts)]
        """Names of the hosts that run jobs."""
        self.network = Lab(hosts + 1, link)
        """Lab with these hosts and, as its last one, the head; faults of hosts happen there."""
        self._cpus = cpus
        self._folder: Path | None = None
        self._controller: RunningJob | None = None
        self._daemons: list[RunningJob] = []

    def __enter__(self) -> Self:
        usable, reason = slurm_available()
        if not usable:
            raise LabError(f"no Slurm can be run here: {reason}")
        for left in Path(tempfile.gettempdir()).glob(f"{namespaces.PREFIX}-*"):
            # Of one that was killed; its processes ended with its network.
            if namespaces.owner_is_gone(left.name):
                shutil.rmtree(left, ignore_errors=True)
        # The path of a socket is short.
        self._folder = Path(tempfile.gettempdir(), f"{namespaces.owner_name()}-{namespaces.new_token()}slurm")
        self._folder.mkdir()
        try:
            self.network.__enter__()
            self._write_files()
            self._start()
            self._await_hosts()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all jobs and daemons, and remove the network and all files; safe to call twice."""
        munge, daemons = self._daemons[:1], [*self._daemons[1:], *filter(None, [self._controller])]
        with ThreadPoolExecutor() as pool:
            # Without munge they would try to reach it before they end, so it ends last.
            for jobs in (daemons, munge):
                list(pool.map(RunningJob.stop, jobs))
        self._daemons, self._controller = [], None
        self.network.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """Folder of configuration, logs and state."""
        if self._folder is None:
            raise LabError("the cluster is not open; use it as `with SlurmCluster(...) as cluster:`")
        return self._folder

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which Slurm's commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, argv: Sequence[str], host: str = "head") -> list[str]:
        """Command that runs another one on a host, to be started with `environment`."""
        number = [*self.names, "head"].index(host)
        # Away from this machine's clock by a time that no run lasts.
        clock = ["--time", f"--monotonic={_CLOCK_APART_S * (number + 1)}"] if _clocks_available() else []
        enter = ["unshare", "--uts", "--mount", *clock, "sh", "-c", _ENTER, "enter", host, str(self.folder)]
        return self.network.inside(number, [*enter, *argv])

    def run(
        self,
        *argv: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = _CALL_S,
        **options: Any,
    ) -> str:
        """Run a command on the head, and return its output.

        Args:
            argv: Program and arguments.
            environment: Variables added to this process's own and the cluster's.
            timeout_s: Time limit, in seconds.
            options: Further options of `subprocess.run`.

        Raises:
            LabError: The command failed or timed out; the message is its own.
        """
        variables = {**os.environ, **self.environment, **(environment or {})}
        try:
            done = subprocess.run(
                self.command(argv),
                env=variables,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                **options,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"`{' '.join(argv)}` did not end within {timeout_s:g} s") from None
        if done.returncode:
            raise LabError(f"`{' '.join(argv)}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def restart_controller(self) -> None:
        """Restart the controller from its saved state; jobs continue meanwhile."""
        assert self._controller is not None
        self._controller.stop()
        self._controller = self._launch("head", ["slurmctld", "-D"])
        self._await_hosts()

    def start_host(self, host: str) -> None:
        """Start the daemon of a killed host, as after a reboot."""
        self._daemons.append(self._launch(host, ["slurmd", "-D"]))

    def _write_files(self) -> None:
        hosts = [*self.names, "head"]
        addresses = {name: self.network.address(number) for number, name in enumerate(hosts)}
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={addresses[name]} NodeHostname={name} CPUs={self._cpus} RealMemory=4096"
            for name in self.names
        )
        told = _CONFIGURATION.format(head=addresses["head"], folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(told)
        (self.folder / "cgroup.conf").write_text(_CONTROL_GROUPS)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        for name in ("state", "local", *(f"local-{host}" for host in hosts)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        self.folder.chmod(0o755)

    def _start(self) -> None:
        files = ("key-file", "log-file", "pid-file", "seed-file", "socket")
        options = [f"--{name}={self.folder}/munge.{name.split('-')[0]}" for name in files]
        # Outside all hosts, so that none takes it along when it dies.
        self._daemons.append(
            RunningJob(
                [Process(0, ["munged", "--foreground", "--force", *options], {})], grace_s=float("inf")
            )
        )
        socket, until_s = self.folder / "munge.socket", time.monotonic() + _READY_S
        while not socket.exists():
            if time.monotonic() > until_s or not self._daemons[0].running:
                raise LabError(f"munged did not come up: {self._tail('munge.log')}")
            time.sleep(_LOOK_S)
        self._controller = self._launch("head", ["slurmctld", "-D"])
        for name in self.names:
            self.start_host(name)

    def _launch(self, host: str, argv: Sequence[str]) -> RunningJob:
        argv = [sys.executable, "-ISs", processes.__file__, *argv]
        return RunningJob([Process(0, self.command(argv, host), self.environment)], grace_s=float("inf"))

    def _await_hosts(self) -> None:
        """Wait until the controller answers and no host is unknown to it."""
        until_s, last = time.monotonic() + _READY_S, ""
        while time.monotonic() < until_s:
            try:
                last = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", "--partition=main")
                if all(line.split()[1] in ("idle", "mix", "alloc", "down") for line in last.splitlines()):
                    return
            except LabError as error:
                last = str(error)
            time.sleep(_LOOK_S)
        raise LabError(f"Slurm did not come up within {_READY_S:g} s: {last}; {self._tail('slurmctld.log')}")

    def _tail(self, name: str) -> str:
        path = self.folder / name
        return (
            " ".join(path.read_text(errors="replace").splitlines()[-3:])
            if path.exists()
            else "it wrote no log"
        )
