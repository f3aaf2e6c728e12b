"""A process of the server is what Python itself would have made of the same words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHOWN = """\
import os, sys
print(sys.argv, __name__, os.getcwd(), os.environ.get("MINE"), sys.stdin.read())
print("said", file=sys.stderr)
"""


@pytest.mark.parametrize("form", ["-c", "-m", "script"])
@pytest.mark.parametrize(
    ("ends", "code"),
    [("", 0), ("sys.exit(3)", 3), ("sys.exit('why')", 1), ("1 / 0", 1), ("os.kill(os.getpid(), 9)", -9)],
)
def test_a_process_is_as_one_of_python(warm_python, tmp_path, form, ends, code):
    (tmp_path / "shown.py").write_text(SHOWN + ends)
    words = {"-c": ["-c", SHOWN + ends], "-m": ["-m", "shown"], "script": ["shown.py"]}[form]
    found = [
        subprocess.run(
            [python, *words, "one", "two words"], cwd=tmp_path, env={**os.environ, "MINE": "yes"}, input="heard",
            capture_output=True, text=True, check=False,
        )
        for python in (sys.executable, warm_python)
    ]  # fmt: skip
    ours, theirs = found
    assert ours.returncode == theirs.returncode == code
    assert ours.stdout == theirs.stdout or code == -9
    assert [ours.stderr.splitlines()[n] for n in (0, -1)] == [theirs.stderr.splitlines()[n] for n in (0, -1)]


def test_modules_are_there_and_programs_that_it_starts_are_warm(warm_python):
    program = (
        "import sys; loaded = 'torch' in sys.modules; import os; print(loaded, sys.executable, os.getppid())"
    )
    once, twice = (
        subprocess.run([warm_python, *words], capture_output=True, text=True, check=True).stdout.split()
        for words in (
            ["-c", program],
            ["-c", f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {program!r}])"],
        )
    )
    assert once == twice and once[:2] == ["True", str(warm_python)]


@pytest.mark.parametrize("ends", [signal.SIG_DFL, signal.SIG_IGN])
def test_signals_end_it_or_are_ignored_as_for_python(warm_python, ends):
    program = "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))"
    ours, theirs = (
        subprocess.run(
            [python, "-c", program],
            preexec_fn=lambda: signal.signal(signal.SIGINT, ends),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for python in (sys.executable, warm_python)
    )
    assert ours == theirs


def test_signals_are_handed_on_and_a_kill_takes_the_process_along(warm_python):
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    for act, code in ((subprocess.Popen.terminate, 7), (subprocess.Popen.kill, -9)):
        with subprocess.Popen([warm_python, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            own = Path("/proc", process.stdout.readline().strip())
            assert own.exists()
            act(process)
            assert process.wait() == code
        until_s = time.monotonic() + 20
        while own.exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        assert not own.exists()


def test_what_it_cannot_do_python_does(warm_python):
    done = subprocess.run([warm_python, "-V"], capture_output=True, text=True, check=True)
    assert done.stdout == f"Python {sys.version.split()[0]}\n"


def test_open_files_go_along_and_servers_of_processes_are_warm(warm_python, tmp_path):
    (tmp_path / "forked.py").write_text(
        "import multiprocessing, sys\n"
        "def loaded(pipe):\n"
        "    pipe.send('torch' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    server = multiprocessing.get_context('forkserver')\n"
        "    ours, theirs = server.Pipe()\n"
        "    process = server.Process(target=loaded, args=(theirs,))\n"
        "    process.start()\n"
        "    print(ours.recv())\n"
        "    process.join()\n"
    )
    done = subprocess.run([warm_python, "forked.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
