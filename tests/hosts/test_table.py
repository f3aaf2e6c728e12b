"""A table of processes: signals reach those that are meant, and ends leave nothing behind."""

from __future__ import annotations

import select
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.hosts.test_fork_server import alive, family, start_family
from wirewise.hosts import ForkedProcess, ForkServer, ProcessTable


class Entry(NamedTuple):
    process: ForkedProcess


@pytest.fixture
def table():
    server = ForkServer(["json"])
    started = ProcessTable[str, Entry]()
    for name in ("first", "second"):
        started[name] = Entry(server.start(time.sleep, [600]))
    yield started, server
    started.close()
    server.close()


def test_a_signal_reaches_those_that_are_meant(table):
    table, _ = table
    table.signal(signal.SIGTERM, lambda name: name == "second")
    second = table["second"].process
    assert select.select([second.pidfd], [], [], 30)[0]
    assert table.reap("second") == -signal.SIGTERM
    assert list(table) == ["first"] and alive(table["first"].process.pid)


def test_a_burial_waits_for_descendants_where_it_is_told_to(table, tmp_path):
    table, server = table
    table["family"] = Entry(server.start(start_family, [str(tmp_path)]))
    descendants = family(Path(tmp_path))
    table["family"].process.kill()
    assert table.reap("family", wait=True) == -signal.SIGKILL
    assert not any(map(alive, descendants))


def test_nothing_is_left_of_a_closed_table_nor_of_what_ended_before(table, tmp_path):
    table, server = table
    table["family"] = Entry(server.start(start_family, [str(tmp_path)]))
    descendants = family(Path(tmp_path))
    table["family"].process.kill()
    assert table.reap("family") == -signal.SIGKILL
    pids = [entry.process.pid for entry in table.values()]
    table.close()
    assert not table and not any(map(alive, [*pids, *descendants]))
