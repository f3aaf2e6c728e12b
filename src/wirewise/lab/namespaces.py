"""Linux network namespaces, virtual Ethernet pairs and token buckets, by iproute2.

Names carry a prefix, the owner's process id and its start time, so that namespaces left behind by a killed owner
are recognised and removed, and those of a living owner, or of anybody else, are never touched.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from wirewise.errors import LabError

__all__ = ["PREFIX", "available", "clean", "enter_user_namespace", "owner_name"]

PREFIX = "ww"
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\w+")
_INSIDE = "WIREWISE_USER_NAMESPACE"


def ip(*arguments: str) -> str:
    """Run `ip` and return what it prints.

    Raises:
        LabError: It failed; the message is its own.
    """
    return _run("ip", *arguments)


def tc(*arguments: str) -> str:
    """Run `tc` and return what it prints; raises as `ip`."""
    return _run("tc", *arguments)


def _run(program: str, *arguments: str) -> str:
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        raise LabError(f"{program} is not installed; install the package iproute2") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{program} {' '.join(arguments)}` did not end within 30 s") from None
    if done.returncode:
        raise LabError(f"`{program} {' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def owner_name(pid: int | None = None) -> str:
    """Prefix of the names that a process owns: its id and its start time in clock ticks."""
    pid = pid or os.getpid()
    return f"{PREFIX}-{pid}-{_start_time(pid)}"


def _start_time(pid: int) -> int | None:
    try:
        # The command in parentheses may hold spaces; the start time is field 22.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def listed() -> list[str]:
    """Names of all network namespaces that `ip` knows."""
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]


def clean() -> list[str]:
    """Remove namespaces of this prefix whose owner is gone, with every process in them; returns their names."""
    stale = []
    for name in listed():
        match = _NAME.fullmatch(name)
        if match and _start_time(int(match[1])) != int(match[2]):
            stale.append(name)
    remove(stale)
    return stale


def remove(names: Iterable[str]) -> None:
    """End every process in the namespaces and delete them."""
    names = list(names)
    for name in names:
        kill_all(name)
    for name in names:
        try:
            ip("netns", "delete", name)
        except LabError as error:
            if "No such file" not in str(error):
                raise


def kill_all(name: str) -> None:
    """Send SIGKILL to every process in a namespace."""
    try:
        pids = ip("netns", "pids", name).split()
    except LabError:
        return
    for pid in pids:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass


def available() -> tuple[bool, str]:
    """Whether a lab can be built here, and if not, what is missing."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return False, f"{program} is not installed; install the package iproute2"
    if os.geteuid() != 0:
        if _user_namespaces():
            return True, "through a user namespace"
        return False, "not root, and this kernel lets no ordinary user make a user namespace; run as root"
    name = f"{owner_name()}-probe"
    try:
        ip("netns", "add", name)
    except LabError as error:
        return False, f"network namespaces cannot be made: {error}"
    try:
        ip("-n", name, "link", "add", "name", "probe0", "type", "veth", "peer", "name", "probe1")
        tc("-n", name, "qdisc", "add", "dev", "probe0", "root", "tbf", "rate", "1mbit", "burst", "32kb", "latency", "50ms")
    except LabError as error:
        return False, f"virtual links cannot be shaped: {error}"
    finally:
        remove([name])
    return True, "as root"


def _user_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"]
    return subprocess.run(probe, capture_output=True, timeout=30).returncode == 0


def enter_user_namespace(argv: list[str]) -> None:
    """Restart this program as root of a user namespace where that is needed and possible; returns otherwise.

    Args:
        argv: The command that starts this program again.
    """
    if os.environ.get(_INSIDE) == "1":
        # `ip netns` keeps its names under /run/netns, which must be ours.
        Path("/run").exists() and _run("mount", "-t", "tmpfs", "tmpfs", "/run")
        Path("/run/netns").mkdir(exist_ok=True)
        os.environ[_INSIDE] = "ready"
    if os.geteuid() == 0 or os.environ.get(_INSIDE) or not available()[0]:
        return
    os.environ[_INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--net", "--mount", "--", *argv])
