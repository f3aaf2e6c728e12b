"""Linux network namespaces by iproute2: created as root, or unprivileged in a user namespace.

Names carry a prefix, the owner's process id and its start time, so that namespaces left behind by a killed
owner are recognised and removed, and those of a living owner, or of anybody else, are never touched. Usually
there are none: a keeper ends every process in the namespaces and removes them as soon as the owner is gone.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Self

from wirewise.errors import LabError
from wirewise.hosts import owner_tag, ownership
from wirewise.hosts.keeper import CleanupShell, pipe

__all__ = [
    "PREFIX",
    "NamespaceScope",
    "available",
    "clean",
    "new_token",
    "owner_is_gone",
    "owner_name",
    "processes_of",
    "shares_network",
]

PREFIX = "ww"
_TIMEOUT_S = 30.0
_USER_NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--"]

# A process may fork between the listing and the signal, so all are listed again until none is left.
_REMOVE = """
if [ "$1" = private ]; then
    if [ -d /run/netns ]; then mount -t tmpfs tmpfs /run/netns
    else mount -t tmpfs tmpfs /run && mkdir /run/netns; fi || exit 1
fi
shift
echo ready
cat > /dev/null
exec > /dev/null 2>&1
for name; do
    for round in 1 2 3 4 5; do
        pids=$(ip netns pids "$name")
        [ -n "$pids" ] || break
        kill -KILL $pids
    done
    ip netns delete "$name"
done
"""
"""Ends the processes in network namespaces and removes these. Arguments: "private", where /run/netns must be
covered because it belongs to somebody else, or "shared"; then names."""


class NamespaceScope:
    """Scope in which network namespaces can be created and their devices changed, with a keeper that cleans up.

    Args:
        names: Names of the namespaces to create here.
        as_root: Create them in the system's own list of namespaces; otherwise in a new user namespace, which needs no
            privilege but must be allowed by the kernel.

    Raises:
        LabError: The scope cannot be created; the message is the system's.
    """

    def __init__(self, names: Sequence[str], *, as_root: bool) -> None:
        outside = [] if as_root else _USER_NAMESPACE
        self._keeper = CleanupShell(_REMOVE, ["shared" if as_root else "private", *names], outside)
        enter = f"nsenter --target {self._keeper.pid} --user --net --mount --preserve-credentials --"
        self._prefix = [] if as_root else enter.split()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process in the namespaces and remove them; returns when done."""
        self._keeper.release()

    def ip(self, *arguments: str, lines: Sequence[str] = (), program: str = "ip") -> None:
        """Run `ip`, in batch mode if `lines` are given.

        Raises:
            LabError: `ip` failed; the message is its own.
        """
        batch = ["-batch", "-"] if lines else []
        run([*self._prefix, program, *arguments, *batch], text="".join(f"{line}\n" for line in lines))

    tc = partialmethod(ip, program="tc")
    """Run `tc`, called as `ip` is."""

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """Command that runs `argv` in a namespace, with that namespace's /sys."""
        return [*self._prefix, "ip", "netns", "exec", name, *argv]

    def hold(self, name: str) -> subprocess.Popen[str]:
        """Start an idle process in the namespace, under whose id the kernel exposes the namespace's counters."""
        holder = subprocess.Popen(
            self.inside(name, ["sh", "-c", "echo ready; exec cat"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        if pipe(holder.stdout).readline().strip() != "ready":
            holder.kill()
            holder.communicate()
            raise LabError(f"no process can be started in namespace {name}; see `wirewise lab check`")
        return holder


def run(argv: Sequence[str], text: str = "") -> str:
    """Run a command and return its output.

    Raises:
        LabError: The command is not installed, failed (the message is its own) or timed out.
    """
    shown = " ".join(argv) + (f" <<< {text.strip()!r}" if text else "")
    try:
        done = subprocess.run(list(argv), input=text, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed; install the package {_package(argv[0])}") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"`{shown}` did not end within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise LabError(f"`{shown}` failed: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def new_token() -> str:
    """Random token that distinguishes the labs of one process."""
    return secrets.token_hex(3)


def owner_name() -> str:
    """Prefix of the names owned by this process."""
    return f"{PREFIX}-{owner_tag()}"


def stale_namespaces() -> list[str]:
    """Names with this prefix whose owner is dead."""
    found = []
    for line in run(["ip", "netns", "list"]).splitlines():
        if line.strip() and owner_is_gone(name := line.split()[0]):
            found.append(name)
    return found


def owner_is_gone(name: str) -> bool:
    """Whether a name has this prefix and a dead owner of this PID namespace."""
    return ownership.owner_is_gone(name, f"{PREFIX}-")


def clean() -> list[str]:
    """Remove namespaces with this prefix whose owner is dead, and their processes; returns their names.

    Raises:
        LabError: `ip` is missing, or there are such namespaces and removing them needs root.
    """
    names = stale_namespaces()
    if names:
        with NamespaceScope(names, as_root=True):
            pass
        left = set(stale_namespaces()) & set(names)
        if left:
            raise LabError(
                f"{len(left)} stale namespaces could not be removed ({min(left)}, ...); run as root"
            )
    return names


def processes_of(holder: int) -> list[int]:
    """Ids of all processes in the network namespace of `holder`, except `holder`."""
    namespace = _network_namespace(holder)
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != holder and _network_namespace(pid) == namespace is not None]


def shares_network(holder: int, pid: int) -> bool:
    """Whether a process is in another's network namespace; False if it has ended or belongs to another user."""
    return _network_namespace(pid) == _network_namespace(holder) is not None


def _network_namespace(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def available() -> tuple[bool, str]:
    """Whether a lab can be built here, and how, or what is missing; never raises."""
    try:
        as_root = choose()
    except (LabError, OSError, subprocess.SubprocessError) as error:
        return False, str(error)
    return True, "as root" if as_root else "without root, in a user namespace"


def choose() -> bool:
    """Build and remove a small network; returns whether it was built as root.

    Raises:
        LabError: It cannot be built; the message says what is missing.
    """
    if platform.system() != "Linux":
        raise LabError(f"network namespaces need Linux, this is {platform.system()}")
    needed = ["ip", "tc", "sh"] + ([] if os.geteuid() == 0 else ["unshare", "nsenter"])
    missing = [program for program in needed if shutil.which(program) is None]
    if missing:
        packages = sorted({_package(program) for program in missing})
        raise LabError(f"{' and '.join(missing)} not found; install {' and '.join(packages)}")
    reasons = []
    for as_root in [True, False] if os.geteuid() == 0 else [False]:
        try:
            _probe(as_root)
            return as_root
        except LabError as error:
            reasons.append(f"{'as root' if as_root else 'in a user namespace'}: {error}")
    raise LabError(
        f"network namespaces cannot be made here ({'; '.join(reasons)}). Run as root (in a container: with "
        "CAP_SYS_ADMIN and CAP_NET_ADMIN), or let ordinary users make user namespaces"
    )


def _probe(as_root: bool) -> None:
    name = f"{owner_name()}-{new_token()}probe"
    with NamespaceScope([name], as_root=as_root) as realm:
        realm.ip("netns", "add", name)
        realm.ip("-n", name, "link", "add", "name", "probe0", "type", "veth", "peer", "name", "probe1")
        realm.ip("-n", name, "link", "add", "name", "bridge", "type", "bridge")
        realm.tc("-n", name, *"qdisc add dev probe0 root tbf rate 1mbit burst 32kb latency 50ms".split())
        run(realm.inside(name, ["true"]))


def _package(program: str) -> str:
    return "iproute2" if program in ("ip", "tc") else "util-linux"
