"""What the kernel shows of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from wirewise.hosts import children_of, end_session, is_computing
from wirewise.hosts.processes import is_cleaner

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]


def test_a_session_ends_with_all_that_is_in_it():
    script = f"import subprocess, os; subprocess.Popen({SLEEP!r}); subprocess.Popen({SLEEP!r}).wait()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.read(2) == b"\n\n"
        assert leader.pid in children_of(os.getpid()) and len(children_of(leader.pid)) == 2
        end_session(leader.pid)
        # All that could write are gone.
        assert leader.stdout.read() == b""


def test_a_computing_process_is_told_from_a_sleeping_one():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        deadline = time.monotonic() + 30
        while not is_computing(busy.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_computing(busy.pid)
        busy.kill()
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as calm:
        assert calm.stdout is not None
        calm.stdout.readline()
        deadline = time.monotonic() + 30
        while is_computing(calm.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_computing(calm.pid)
        assert not is_cleaner(calm.pid)
        calm.kill()
