"""Owners in names: dead ones of this process namespace are told from all others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wirewise.hosts import ProcessIdentity
from wirewise.hosts.ownership import owner_is_gone, owner_tag, stale
from wirewise.hosts.processes import start_ticks


def ended() -> ProcessIdentity:
    code = "from wirewise.hosts import owner_tag; print(owner_tag())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    owner = ProcessIdentity.parse(done.stdout)
    assert owner is not None
    return owner


def test_only_a_dead_owner_of_this_namespace_is_gone():
    own = ProcessIdentity.of_this_process()
    assert own.pid == os.getpid() and not own.is_gone
    assert own._replace(start_ticks=own.start_ticks - 1).is_gone
    dead = ended()
    assert dead.is_gone
    # A container that shares /dev/shm: its process ids mean nothing here.
    assert not dead._replace(pid_namespace=dead.pid_namespace + 1).is_gone


@pytest.mark.parametrize("name", ["x-", "x-1", "x-1-2", "x-a-b-c", "y-1-2-3"])
def test_names_without_an_owner_are_nobodys(name):
    assert not owner_is_gone(name, "x-")


def test_stale_entries_are_those_of_dead_owners(tmp_path):
    dead = ended()
    for name in (f"x-{dead}-1", f"y-{dead}-1", f"x-{owner_tag()}-1", "x-9999-1"):
        (tmp_path / name).mkdir()
    assert [path.name for path in stale(tmp_path, "x-")] == [f"x-{dead}-1"]


def test_a_zombie_counts_as_gone():
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(child.pid) is None
