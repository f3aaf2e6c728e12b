"""Folders in shared places: unreadable to others, and gone with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import wirewise
from wirewise.hosts import OwnedFolder, ProcessIdentity, folders, owner_tag

OWNER = """
import sys, time
from pathlib import Path
from wirewise.hosts import OwnedFolder
folder = OwnedFolder(Path(sys.argv[1]), "x-")
print(folder.path, folder._remover.pid, flush=True)
time.sleep(600)
"""


def start(place: Path) -> tuple[subprocess.Popen[str], Path, int]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(place)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    path, remover = owner.stdout.readline().split()
    return owner, Path(path), int(remover)


def end(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate()


def test_a_folder_is_its_users_alone_and_has_a_name_that_nobody_guesses(tmp_path):
    with OwnedFolder(tmp_path, "x-") as one, OwnedFolder(tmp_path, "x-") as other:
        assert one.path.stat().st_mode & 0o777 == 0o700
        assert one.path.name.startswith(f"x-{owner_tag()}-") and one.path != other.path
        assert len(one.path.name.rpartition("-")[2]) == 16
        (one.path / "file").write_text("x")
    assert not list(tmp_path.iterdir())


def test_a_folder_goes_with_its_owner_however_it_ends(tmp_path):
    owner, path, _ = start(tmp_path)
    end(owner)
    deadline = time.monotonic() + 30
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not path.exists()


def test_folders_of_commands_are_removed_though_they_are_killed():
    """A temporary directory of Python's own would stay, and say of nobody that it is his."""
    package = Path(wirewise.__file__).parent
    own = ("TemporaryDirectory(", "mkdtemp(")
    found = {file.name for file in package.rglob("*.py") if any(word in file.read_text() for word in own)}
    # The cache of items says by its lock whose it is.
    assert found == {"cache.py"}


def test_the_next_owner_removes_what_is_provably_dead_and_nothing_else(tmp_path):
    dead, left, remover = start(tmp_path)
    os.kill(remover, signal.SIGKILL)
    end(dead)
    living, kept, _ = start(tmp_path)
    assert not left.exists()
    own = ProcessIdentity.of_this_process()
    # Of a job in a container that shares the place: no process here has this id.
    foreign = tmp_path / f"x-{own._replace(pid=2**22 + 1, pid_namespace=own.pid_namespace + 1)}-1"
    foreign.mkdir()
    with OwnedFolder(tmp_path, "x-"):
        assert kept.exists() and foreign.exists()
    end(living)


def test_everything_stale_is_found_whatever_it_was_for(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MEMORY", tmp_path)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    own = ProcessIdentity.of_this_process()
    dead = own._replace(start_ticks=own.start_ticks - 1)
    for name in (
        f"wirewise-faults-{dead}-1",
        f"wirewise-jobs-{dead}-1",
        f"wirewise-jobs-{own}-1",
        "wirewise-x-1",
    ):
        (tmp_path / name).mkdir()
    removed = {Path(path).name for path in folders.remove_all_stale()}
    assert removed == {f"wirewise-faults-{dead}-1", f"wirewise-jobs-{dead}-1"}
    assert {path.name for path in tmp_path.iterdir()} == {f"wirewise-jobs-{own}-1", "wirewise-x-1"}
