"""Limits of processor time: groups as the kernel has them, and processes that are stopped where there are none."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from wirewise.errors import LabError
from wirewise.hosts import ProcessIdentity
from wirewise.lab.limits import CpuLimit, control_groups


def test_a_share_that_cannot_be_kept_is_refused():
    with pytest.raises(LabError, match=r"got a limit of 0\.001 processors; expected at least 0\.02"):
        CpuLimit([], 0.001, None)


def test_groups_are_found_where_they_can_be_made(tmp_path):
    assert control_groups(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert control_groups(tmp_path) == tmp_path / "cpu"
    (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu io")
    assert control_groups(tmp_path) == tmp_path


def test_a_group_gets_its_quota_and_those_of_dead_owners_go(tmp_path):
    own = ProcessIdentity.of_this_process()
    # A process that has this one's id, but started earlier, is gone.
    (tmp_path / f"wirewise-{own._replace(start_ticks=own.start_ticks - 1)}-beef").mkdir()
    limit = CpuLimit([os.getpid()], 0.5, tmp_path)
    [group] = tmp_path.iterdir()
    assert group.name.startswith(f"wirewise-{os.getpid()}-")
    assert (group / "cpu.max").read_text() == "25000 50000"
    assert (group / "cgroup.procs").read_text() == str(os.getpid())
    # A folder that is no group of the kernel's cannot be removed with its files.
    for file in group.iterdir():
        file.unlink()
    limit.close()
    limit.close()
    assert not group.exists()


@pytest.mark.slow
@pytest.mark.parametrize("grouped", [True, False])
def test_a_limited_process_has_its_share(grouped):
    groups = control_groups() if grouped else None
    if grouped and groups is None:
        pytest.skip("no control group can be made here")
    # It computes only once the limit holds; what Python's start took is in what it used.
    process = subprocess.Popen([sys.executable, "-c", "input()\nwhile True: pass"], stdin=subprocess.PIPE)
    limit = CpuLimit([process.pid], 0.1, groups)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
    process.kill()
    _, process.returncode, used = os.wait4(process.pid, 0)
    limit.close()
    assert used.ru_utime + used.ru_stime < 0.5
