"""A command of the user's ends with whoever started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wirewise.errors import LabError
from wirewise.lab import run_owned

# As torchrun does, the command starts a process in a session of its own; both tell their ids.
COMMAND = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
OWNER = """
import os, sys
from wirewise.lab import run_owned
run_owned([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=os.environ)
"""


def alive(pid: int) -> bool:
    try:
        # A process that nobody has waited for yet is dead, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds, what: str) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, None), (signal.SIGKILL, -9)],
)
def test_nothing_outlives_its_owner(number: int, exit_code: int | None, tmp_path: Path) -> None:
    told = tmp_path / "processes"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, COMMAND, str(told)], stderr=subprocess.DEVNULL, start_new_session=True
    )
    until(told.exists, "the command never started")
    processes = [int(word) for word in told.read_text().split()]
    assert all(map(alive, processes))
    owner.send_signal(number)
    code = owner.wait(timeout=60)
    assert code == exit_code or exit_code is None
    until(lambda: not any(map(alive, processes)), "a process outlived its owner")


def test_the_exit_code_is_that_of_the_command() -> None:
    for end, code in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -15)):
        assert run_owned([sys.executable, "-c", end], env=os.environ) == code


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(LabError, match="cannot start 'no-such-program'"):
        run_owned(["no-such-program"], env=os.environ)
