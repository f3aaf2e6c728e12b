"""What the kernel shows of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from wirewise.hosts import children_of, end_session, is_computing, processes
from wirewise.hosts.processes import is_cleaner, is_own_child, signal_group, signal_process

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]


def soon(condition: Callable[[], bool], patience_s: float = 30.0) -> bool:
    """Whether the condition comes true."""
    deadline = time.monotonic() + patience_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


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
    loop = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        assert soon(lambda: is_computing(busy.pid))
        busy.kill()
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as calm:
        assert calm.stdout is not None
        calm.stdout.readline()
        assert soon(lambda: not is_computing(calm.pid))
        assert not is_cleaner(calm.pid)
        calm.kill()


def test_a_signal_reaches_only_what_is_meant():
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        asked: list[int] = []

        def is_other(pid: int) -> bool:
            asked.append(pid)
            return False

        assert not signal_process(child.pid, signal.SIGKILL, is_other)
        assert asked == [child.pid] and child.poll() is None
        assert signal_process(child.pid, signal.SIGKILL, is_own_child)
        assert child.wait() == -signal.SIGKILL
        assert not signal_process(child.pid, signal.SIGKILL, lambda _: True)


def test_the_group_of_a_child_that_has_ended_is_let_alone():
    """The number of its group may be that of another one by then."""
    with subprocess.Popen(["true"], start_new_session=True) as child:
        child.wait()
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, start_new_session=True) as other:
        child.pid = other.pid
        signal_group(child, signal.SIGKILL)
        assert other.poll() is None
        signal_group(other, signal.SIGKILL)
        assert other.wait() == -signal.SIGKILL


def test_the_first_process_of_a_host_reaps_orphans_and_ends_as_its_daemon():
    # The orphan of the shell would stay a zombie of whoever adopts it.
    script = 'sh -c "true & echo \\$!"; read line; exit 3'
    argv = [sys.executable, "-ISs", processes.__file__, "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdin is not None and first.stdout is not None
        orphan = Path(f"/proc/{first.stdout.readline().strip()}")
        assert soon(lambda: not orphan.exists()) and first.poll() is None
        first.stdin.write("end\n")
        first.stdin.flush()
        assert first.wait() == 3
    assert subprocess.run([*argv[:-3], "sh", "-c", "kill -KILL $$"], check=False).returncode == 128 + 9


def test_signals_death_with_the_parent_and_places_of_ranks_are_set_here_alone():
    root = Path(processes.__file__).parents[1]
    words = ("os.kill(", "os.killpg(", "pidfd_send_signal(", "prctl(", "--pdeathsig", '"MASTER_ADDR":')
    found = {
        (str(path.relative_to(root).parent), word)
        for path in root.rglob("*.py")
        for word in words
        if word in path.read_text()
    }
    assert found == {("hosts", word) for word in words if word != "os.kill("}


def test_a_process_that_exits_at_once_has_written_its_output():
    code = (
        "import atexit, sys; from wirewise.hosts import exit_at_once; atexit.register(print, 'not this')\n"
        "print('said'); sys.stderr = None; exit_at_once(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "said\n"), done.stderr
