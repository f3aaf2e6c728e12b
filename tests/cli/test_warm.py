"""Small jobs compile what users' first commands need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wirewise.cli.warm import COMMANDS

WARM = """
from numba.core import event
from wirewise.cli.warm import warm_commands

with event.install_recorder("numba:compile") as compiled:
    print(warm_commands())
print(sum(kind.is_start for _, kind in compiled.buffer))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_runs_and_the_next_process_compiles_nothing(tmp_path):
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", WARM],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.splitlines())
    assert [failed for failed, _ in told] == ["[]", "[]"]
    assert int(told[0][1]) > 100 and told[1][1] == "0"


def test_commands_are_of_many_kinds():
    kinds = {" ".join(command.split()[:2]) for command in COMMANDS}
    assert {"trace show", "plan fusion", "plan collective", "plan jobs", "data partition"} <= kinds
    assert all(word not in command for command in COMMANDS for word in ("/", "~"))
