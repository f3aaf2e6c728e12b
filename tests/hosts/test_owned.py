"""A command that wirewise runs in the foreground never outlives it; every signal here is a real one."""

import os
import signal

import pytest

from tests.lab.helpers import processes_with, soon, start_owner
from wirewise.errors import LabError
from wirewise.lab import run_owned

# A child of its own session, as torchrun makes of its ranks.
_COMMAND = (
    "setsid sleep {mark} & trap 'echo heard {name}; exit 3' {name}; echo runs; while :; do sleep 0.05; done"
)
# The command runs before its owner hears that it was started.
_SLOW_OWNER = """
import subprocess, time

class Popen(subprocess.Popen):
    def __init__(self, argv, **options):
        super().__init__(argv, **options)
        if options.get("process_group") == 0:
            time.sleep(1)

subprocess.Popen = Popen
"""
_OWNER = """
import os, sys
from wirewise.cli.main import app
from wirewise.__main__ import main
from wirewise.lab import run_owned

@app.command("owned")
def owned(command: str) -> None:
    run_owned(["sh", "-c", command], environment=os.environ)

main()
"""


def test_the_exit_code_is_that_of_the_command():
    assert run_owned(["sh", "-c", "exit 3"], environment=os.environ) == 3
    assert run_owned(["sh", "-c", "kill -KILL $$"], environment=os.environ) == -signal.SIGKILL


def test_what_it_leaves_behind_is_ended():
    mark = f"302.{os.getpid()}"
    assert run_owned(["sh", "-c", f"setsid sleep {mark} & sleep 0.1"], environment=os.environ) == 0
    assert not processes_with(f"sleep\0{mark}")


def test_a_program_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("wirewise.hosts.owned.dying_with_parent", list)
    with pytest.raises(LabError, match="cannot start 'no-such-program'"):
        run_owned(["no-such-program"], environment=os.environ)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
@pytest.mark.parametrize("before", ["", _SLOW_OWNER], ids=["running", "starting"])
def test_a_signal_goes_on_to_the_command(name, before):
    number, mark = signal.Signals[f"SIG{name}"], f"303.{os.getpid()}"
    with start_owner(before + _OWNER, "owned", _COMMAND.format(mark=mark, name=name)) as owner:
        assert owner.stdout.readline() == "runs\n"
        owner.send_signal(number)
        assert owner.stdout.readline() == f"heard {name}\n"
        assert owner.wait(timeout=20) == 128 + number
        assert not processes_with(f"sleep\0{mark}")


def test_nothing_is_left_after_sigkill():
    mark = f"304.{os.getpid()}"
    with start_owner(_OWNER, "owned", _COMMAND.format(mark=mark, name="TERM")) as owner:
        assert owner.stdout.readline() == "runs\n"
        assert soon(lambda: processes_with(f"sleep\0{mark}"))
        owner.kill()
        assert soon(lambda: not processes_with(f"sleep\0{mark}") and not processes_with("heard TERM"))


def test_ctrl_c_while_modules_are_imported_is_no_traceback(tmp_path):
    # The first import that the command line makes blocks until the signal is there.
    (tmp_path / "typer.py").write_text("import time\nprint('imports', flush=True)\ntime.sleep(300)\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from wirewise.__main__ import main; main()"
    with start_owner(script, stderr=-1) as owner:
        assert owner.stdout.readline() == "imports\n"
        owner.send_signal(signal.SIGINT)
        assert owner.wait(timeout=20) == 130
        assert owner.stderr.read() == ""
