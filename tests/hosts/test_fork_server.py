"""Processes that are forked: what they find, how their end is noticed, and that nothing of them is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wirewise.hosts import ForkServer, children_of

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(scope="module")
def server():
    # Light modules: what is forked does not depend on them.
    started = ForkServer(["json"])
    yield started
    started.close()


def work(descriptor: int, folder: str) -> None:
    assert "json" in sys.modules
    os.write(1, b"written to the log\n")
    os.write(descriptor, f"{os.environ['OF_THIS_START']} {Path.cwd()} {os.getsid(0) == os.getpid()}".encode())
    sys.exit(int(folder))


def test_a_process_has_descriptors_variables_folder_log_and_a_session_of_its_own(
    server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ours, theirs = os.pipe()
    process = server.start(
        work, ["7"], pass_fds=[theirs], environment={"OF_THIS_START": "x"}, log=tmp_path / "log"
    )
    os.close(theirs)
    assert os.read(ours, 999).decode() == f"x {tmp_path} True"
    assert process.join() == 7
    process.close()
    os.close(ours)
    assert (tmp_path / "log").read_text() == "written to the log\n"


def fail() -> None:
    raise ValueError("a mistake")


def test_errors_and_signals_are_told_by_exit_codes(server, tmp_path):
    process = server.start(fail, log=tmp_path / "log")
    assert process.join() == 1
    process.close()
    assert "ValueError: a mistake" in (tmp_path / "log").read_text()
    process = server.start(time.sleep, [600])
    process.kill()
    assert select.select([process.pidfd], [], [], 30)[0]
    assert process.join() == -signal.SIGKILL
    process.close()


def start_family(folder: str) -> None:
    """Children and grandchildren, in this session, in one of their own, and left by a parent that is gone."""
    script = "import subprocess, sys; subprocess.Popen(sys.argv[2:], start_new_session=sys.argv[1] == 'own')"
    subprocess.Popen(SLEEP)
    subprocess.Popen(SLEEP, start_new_session=True)
    for kind in ("own", "same"):
        subprocess.run([sys.executable, "-c", script, kind, *SLEEP], check=True)
    Path(folder, "ready").write_text(" ".join(map(str, children_of(os.getpid()))))
    time.sleep(600)


def soon(condition, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(met)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def family(folder: Path) -> list[int]:
    assert soon((folder / "ready").exists)
    assert soon(lambda: len((folder / "ready").read_text().split()) == 4)
    return [int(pid) for pid in (folder / "ready").read_text().split()]


def test_all_that_descends_from_a_killed_process_ends_with_it(server, tmp_path):
    for name in ("killed", "living"):
        (tmp_path / name).mkdir()
    living = server.start(start_family, [str(tmp_path / "living")])
    killed = server.start(start_family, [str(tmp_path / "killed")])
    spared, ended = family(tmp_path / "living"), family(tmp_path / "killed")
    assert all(map(alive, spared + ended))
    os.kill(killed.pid, signal.SIGKILL)
    killed.close()
    assert not any(map(alive, ended))
    assert all(map(alive, spared))
    living.kill()
    living.close()
    assert not any(map(alive, spared))


OWNER = """
import sys, time
from tests.hosts.test_fork_server import start_family
from wirewise.hosts import ForkServer
if __name__ == "__main__":
    process = ForkServer().start(start_family, [sys.argv[1]])
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_processes_end_with_their_owner_however_it_ends(tmp_path):
    (tmp_path / "owner.py").write_text(OWNER)
    paths = os.pathsep.join(["src", str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "owner.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        processes = [int(owner.stdout.readline()), *family(tmp_path)]
        # A stopped one too.
        os.kill(processes[0], signal.SIGSTOP)
        owner.kill()
    assert soon(lambda: not any(map(alive, processes)))


def test_a_server_that_is_killed_takes_its_processes_along_and_another_follows(tmp_path):
    server = ForkServer()
    process = server.start(start_family, [str(tmp_path)])
    descendants = family(tmp_path)
    assert server._process is not None
    server._process.kill()
    assert process.join() == -signal.SIGKILL
    process.close()
    # What left its session is beyond reach without the server that adopts it.
    assert soon(lambda: sum(map(alive, descendants)) <= 2)
    for pid in filter(alive, descendants):
        os.kill(pid, signal.SIGKILL)
    server.close()
    again = server.start(os.getcwd)
    assert again.join() == 0
    again.close()
    server.close()
