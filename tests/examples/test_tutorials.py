"""Commands of the tutorials, as they are written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
COMMAND = re.compile(r"^    (wirewise |torchrun )", re.MULTILINE)
EXPECTED = {
    "slow-ddp-job": "The slowest link is that of host",
    "large-graph": "test accuracy over all ranks: 0.",
    "split-a-model": "update 20: loss 0.",
}
"""Part of what the commands of a page print."""

# Sixty steps of four ranks over 50 Mbit/s take minutes where two processors are shared; ten show the same. Trials by
# restarts of a job have tests of their own.
SHORTER = {
    "--steps 60": "--steps 10",
    "--nodes 60000": "--nodes 12000",
    "wirewise advise -o": "wirewise advise --trials 1 --restarts 0 -o",
    "--hosts 2 --link 50mbit": "--hosts 2 --link 400mbit",
}


def commands_of(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8")
    for written, shorter in SHORTER.items():
        text = text.replace(written, shorter)
    return [shlex.split(line) for line in text.splitlines() if COMMAND.match(line)]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(600)  # the longest page takes 180 s of processor time
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_tutorial_run_in_their_order(page, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    printed = ""
    for command in commands_of(page):
        done = subprocess.run(
            [str(binaries / command[0]), *command[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed += done.stdout + done.stderr  # hosts of a lab print on stderr
    assert EXPECTED[page.stem] in printed
