"""CPU limit of a group of processes: by a kernel control group, or by stopping them periodically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from wirewise.errors import LabError
from wirewise.hosts import ProcessIdentity, owner_tag
from wirewise.hosts.ownership import stale
from wirewise.lab.throttle import Throttle

__all__ = ["CpuLimit", "control_groups"]

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD_US, _LEAST_US = 50_000, 1_000
"""Microseconds of a period, and the least that the kernel takes as its share."""
_PREFIX = "wirewise-"


def control_groups(root: Path = _GROUPS) -> Path | None:
    """Folder in which control groups with a CPU limit can be created. None if there is none.

    Args:
        root: Mount point of control groups.
    """
    unified = root / "cgroup.subtree_control"
    with suppress(OSError):
        if "cpu" in unified.read_text().split() and os.access(root, os.W_OK):
            return root
    first = root / "cpu"
    return first if (first / "cpu.cfs_quota_us").exists() and os.access(first, os.W_OK) else None


class CpuLimit:
    """Limit of the CPUs that processes use together, until `close`.

    With a control group, the kernel lets them run until their common quota for a period of 50 ms is used up. If none
    can be created, each process is stopped for a part of the time (`Throttle`) and has an equal quota.

    Args:
        pids: Processes to limit; with a control group, also their future descendants.
        processors: Number of CPUs, such as 0.5; at least 0.02.
        groups: Folder for groups, from `control_groups`. None if processes are to be stopped.

    Raises:
        LabError: The limit is too small to be enforced, or the kernel refuses the group.
    """

    def __init__(self, pids: Sequence[int], processors: float, groups: Path | None) -> None:
        if not _LEAST_US / _PERIOD_US <= processors < float("inf"):
            raise LabError(
                f"got a limit of {processors} processors; expected at least {_LEAST_US / _PERIOD_US:g}"
            )
        self._throttle: Throttle | None = None
        self._group: Path | None = None
        if groups is None:
            if len(pids) > processors:
                ranks = [rank for pid in pids if (rank := ProcessIdentity.of(pid)) is not None]
                self._throttle = Throttle(
                    lambda number: [rank.signal(number) for rank in ranks], len(pids) / processors
                )
            return
        _sweep(groups)
        self._group = groups / f"{_PREFIX}{owner_tag()}-{secrets.token_hex(4)}"
        quota = str(round(processors * _PERIOD_US))
        try:
            self._group.mkdir()
            if (self._group / "cpu.cfs_quota_us").exists():
                (self._group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._group / "cpu.cfs_quota_us").write_text(quota)
            else:
                (self._group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
            for pid in pids:
                # One that has ended needs no limit.
                with suppress(ProcessLookupError):
                    (self._group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.close()
            raise LabError(
                f"the kernel refuses a control group in {groups}: {error.strerror}; without groups processes are "
                "stopped for a part of the time"
            ) from error

    def close(self) -> None:
        """Remove the limit; safe to call twice."""
        if self._throttle is not None:
            self._throttle.stop()
            self._throttle = None
        if self._group is not None:
            _dissolve(self._group)
            self._group = None


def _dissolve(group: Path) -> None:
    """Remove a group; processes that are left in it go to the one above."""
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
    with suppress(OSError):
        group.rmdir()


def _sweep(groups: Path) -> None:
    """Remove groups of owners that were killed."""
    for group in stale(groups, _PREFIX):
        _dissolve(group)
