"""Every case of docs/bad-input.md: one message, exit code 2, nothing left, and the page quotes what is printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.bad_input import CASES, write_files
from wirewise.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "bad-input.md"
ROW = re.compile(r"^\| ([^|]+) \| `([^`]+)` \| ``? ?(.+?) ?``? \|$", re.MULTILINE)
QUOTED = {
    case: (command, message)
    for case, command, message in ROW.findall(PAGE.read_text("utf-8").partition("## Found while running")[0])
}
DRAW = "data generate --nodes 20000 --features 2000 -o out.npz"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    # No case gets as far as a lab; without this, a machine that can build none would run them on loopback.
    monkeypatch.setattr("wirewise.lab.available", lambda: (True, "as root"))
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_page_quotes_what_is_printed(case, folder):
    before = sorted(folder.rglob("*"))
    done = CliRunner().invoke(app, CASES[case].split())
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stderr[:10]) == (2, "wirewise: ")
    command, message = QUOTED[case]
    assert command == CASES[case]
    printed = done.stderr.splitlines()[0].removeprefix("wirewise: ")
    assert re.fullmatch(".*".join(map(re.escape, message.split("..."))), printed), (message, printed)
    # Python keeps what it compiles of a model's file beside it.
    left = {path for path in folder.rglob("*") if "__pycache__" not in path.parts} - set(before)
    assert left <= {folder / "runs"}, "an empty folder of runs may stay"


def test_the_page_has_no_other_cases():
    assert QUOTED.keys() == CASES.keys()


def start(command: str, **options):
    # A shell in the background ignores Ctrl-C, and children inherit that.
    return subprocess.Popen(
        [sys.executable, "-m", "wirewise", *command.split()],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@pytest.mark.parametrize("command", ["list systems", "list systems --json -", "topo show dgx-2"])
def test_a_reader_that_goes_away_is_no_error(command):
    reader, writer = os.pipe()
    os.close(reader)
    with start(command, stdout=writer) as process:
        os.close(writer)
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize("command", ["list systems", "list systems --json -"])
def test_a_full_disk_behind_stdout_is_named(command):
    with Path("/dev/full").open("w") as full, start(command, stdout=full) as process:
        said = process.stderr.read()
    assert process.returncode == 2
    assert said.startswith("wirewise: [Errno 28] No space left on device; free space")
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_interrupted_write_leaves_nothing(tmp_path):
    with start(DRAW, cwd=tmp_path) as process:
        while not list(tmp_path.iterdir()) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
