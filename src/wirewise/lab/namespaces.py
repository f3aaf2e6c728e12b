"""Linux network namespaces by iproute2: made as root, or by anybody in a user namespace of their own.

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
from wirewise.lab.keeper import REMOVE_NAMESPACES, Keeper, pipe

__all__ = [
    "PREFIX",
    "Realm",
    "available",
    "clean",
    "new_token",
    "owner_is_gone",
    "owner_name",
    "processes_of",
]

PREFIX = "ww"
_TIMEOUT_S = 30.0
_USER_NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--"]


class Realm:
    """A place where network namespaces can be made and their devices changed, with a keeper that tidies up.

    Args:
        names: Names of the namespaces that will be made here.
        as_root: Make them in this system's own list of namespaces; otherwise in a new user namespace, which
            needs no privilege but must be allowed by the kernel.

    Raises:
        LabError: The place cannot be had; the message is the system's.
    """

    def __init__(self, names: Sequence[str], *, as_root: bool) -> None:
        outside = [] if as_root else _USER_NAMESPACE
        self._keeper = Keeper(REMOVE_NAMESPACES, ["shared" if as_root else "private", *names], outside)
        enter = f"nsenter --target {self._keeper.pid} --user --net --mount --preserve-credentials --"
        self._prefix = [] if as_root else enter.split()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process in the namespaces and remove them; returns when that is done."""
        self._keeper.release()

    def ip(self, *arguments: str, lines: Sequence[str] = (), program: str = "ip") -> None:
        """Run `ip`; with `lines` as a batch.

        Raises:
            LabError: It failed; the message is its own.
        """
        batch = ["-batch", "-"] if lines else []
        run([*self._prefix, program, *arguments, *batch], text="".join(f"{line}\n" for line in lines))

    tc = partialmethod(ip, program="tc")
    """Run `tc`, called as `ip` is."""

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` in a namespace, with the /sys of that namespace."""
        return [*self._prefix, "ip", "netns", "exec", name, *argv]

    def hold(self, name: str) -> subprocess.Popen[str]:
        """An idle process in the namespace: the kernel shows the namespace's counters under its id."""
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
    """Run a command and return what it prints.

    Raises:
        LabError: It is not installed, failed (the message is its own) or did not end.
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
    """A random word that tells the labs of one process apart."""
    return secrets.token_hex(3)


def owner_name() -> str:
    """Prefix of the names that this process owns."""
    return f"{PREFIX}-{owner_tag()}"


def stale() -> list[str]:
    """Names of this prefix whose owner is gone."""
    found = []
    for line in run(["ip", "netns", "list"]).splitlines():
        if line.strip() and owner_is_gone(name := line.split()[0]):
            found.append(name)
    return found


def owner_is_gone(name: str) -> bool:
    """Whether a name has this prefix, and an owner of this process namespace that is no more."""
    return ownership.owner_is_gone(name, f"{PREFIX}-")


def clean() -> list[str]:
    """Remove namespaces of this prefix whose owner is gone, with every process in them; returns their names.

    Raises:
        LabError: `ip` is missing, or there are such namespaces and removing them needs root.
    """
    names = stale()
    if names:
        with Realm(names, as_root=True):
            pass
        left = set(stale()) & set(names)
        if left:
            raise LabError(
                f"{len(left)} stale namespaces could not be removed ({min(left)}, ...); run as root"
            )
    return names


def processes_of(holder: int) -> list[int]:
    """Ids of all processes that live in the network namespace of `holder`, without it."""
    namespace = Path(f"/proc/{holder}/ns/net").stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns" / "net").stat().st_ino == namespace:
                found.append(int(entry.name))
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
    return [pid for pid in found if pid != holder]


def available() -> tuple[bool, str]:
    """Whether a lab can be built here and how, or what is missing; never raises."""
    try:
        as_root = choose()
    except (LabError, OSError, subprocess.SubprocessError) as error:
        return False, str(error)
    return True, "as root" if as_root else "without root, in a user namespace"


def choose() -> bool:
    """Build a small network and remove it; returns whether it was built as root.

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
    with Realm([name], as_root=as_root) as realm:
        realm.ip("netns", "add", name)
        realm.ip("-n", name, "link", "add", "name", "probe0", "type", "veth", "peer", "name", "probe1")
        realm.ip("-n", name, "link", "add", "name", "bridge", "type", "bridge")
        realm.tc("-n", name, *"qdisc add dev probe0 root tbf rate 1mbit burst 32kb latency 50ms".split())
        run(realm.inside(name, ["true"]))


def _package(program: str) -> str:
    return "iproute2" if program in ("ip", "tc") else "util-linux"
