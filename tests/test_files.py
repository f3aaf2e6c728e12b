from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wirewise.errors import GraphError, InputError
from wirewise.files import (
    LOCK,
    atomic_file,
    exclusive_folder,
    joint_folder,
    make_folder,
    owns_folder,
    wait_until_left,
)


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "plan"
    with atomic_file(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert _names(tmp_path) == ["plan"]


def test_an_error_leaves_the_old_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "plan"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_file(target) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_bytes() == b"old"
    assert _names(tmp_path) == ["plan"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    target = tmp_path / "plan"
    # The temporary name leads to a device that takes no byte, as a full disk does.
    (tmp_path / f".plan.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(GraphError, match=r"cannot write .*plan: No space left on device; nothing was left"):
        with atomic_file(target, error=GraphError) as file:
            file.write(b"x" * 100_000)
    assert _names(tmp_path) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*absent/plan: No such file or directory"):
        with atomic_file(tmp_path / "absent" / "plan"):
            raise AssertionError("not reached")


def test_a_folder_cannot_be_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"), atomic_file(tmp_path) as file:
        file.write(b"x")
    assert _names(tmp_path.parent).count(tmp_path.name) == 1 and _names(tmp_path) == []
    with pytest.raises(InputError, match="Is a directory"), atomic_file("."):
        pytest.fail("a folder was opened")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_file(pipe) as file:
        file.write(b"new")
    assert os.read(reader, 10) == b"new"
    assert pipe.is_fifo() and _names(tmp_path) == ["pipe"]
    os.close(reader)


def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "plan", tmp_path / "link"
    link.symlink_to(target)
    for text in (b"new", b"newer"):
        with atomic_file(link) as file:
            file.write(text)
        assert link.is_symlink() and target.read_bytes() == text
    assert _names(tmp_path / "elsewhere") == ["plan"] and sorted(_names(tmp_path)) == ["elsewhere", "link"]


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    made = make_folder(tmp_path / "a" / "b")
    assert made.is_dir() and make_folder(made) == made
    (tmp_path / "file").touch()
    with pytest.raises(GraphError, match=r"cannot create the folder .*file"):
        make_folder(tmp_path / "file", error=GraphError)


@pytest.mark.parametrize("name", ["a" * 251 + ".txt", "ä" * 127])
def test_names_may_be_as_long_as_the_file_system_takes(name: str, tmp_path: Path) -> None:
    with atomic_file(tmp_path / name) as one, atomic_file(tmp_path / f"{name[:-1]}b") as other:
        one.write(b"one")
        other.write(b"other")
    assert (tmp_path / name).read_bytes() == b"one" and len(_names(tmp_path)) == 2


_HOLDER = """
import sys, time
from wirewise.files import exclusive_folder
with exclusive_folder(sys.argv[1]):
    print("holds it", flush=True)
    time.sleep(300)
"""


def test_a_folder_is_of_one_process_until_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"holds it\n"
            with pytest.raises(
                InputError, match=rf"{folder} is in use: process {holder.pid} .*choose another"
            ):
                with exclusive_folder(folder):
                    pass
        finally:
            holder.kill()
    # Its lock file is left, and means nothing any more.
    assert _names(folder) == [LOCK]
    with exclusive_folder(folder):
        assert (folder / LOCK).read_text() == f"{os.getpid()}\n"
    assert _names(folder) == []


def test_the_thread_that_holds_a_folder_may_enter_it_again(tmp_path: Path) -> None:
    @owns_folder
    def write(folder: Path | None) -> list[str]:
        return [] if folder is None else _names(folder)

    found: list[object] = []

    def other() -> None:
        try:
            found.append(write(tmp_path))
        except InputError as error:
            found.append(str(error))

    with exclusive_folder(tmp_path):
        assert write(tmp_path / ".") == [LOCK]
        assert write(folder=None) == []
        assert (tmp_path / LOCK).exists()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert f"process {os.getpid()} of another run" in str(found[0])
    assert write(tmp_path) == [LOCK]
    assert _names(tmp_path) == []


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.write_text("precious")
    folder = make_folder(tmp_path / "run")
    (folder / LOCK).symlink_to(target)
    with pytest.raises(InputError, match="cannot lock the folder"), exclusive_folder(folder):
        pass
    assert target.read_text() == "precious"


def test_processes_of_one_run_share_a_folder_that_the_first_one_prepares(tmp_path: Path) -> None:
    prepared: list[Path] = []
    first = joint_folder(tmp_path, "a run", prepared.append)
    first.__enter__()
    with joint_folder(tmp_path, "a run", prepared.append):
        assert prepared == [tmp_path]
        with pytest.raises(InputError, match="is in use"), joint_folder(tmp_path, "another"):
            pass
        with pytest.raises(InputError, match="is in use"), exclusive_folder(tmp_path):
            pass
        first.__exit__(None, None, None)
        # One of them is still there.
        assert not wait_until_left(tmp_path, 0.1)
    assert wait_until_left(tmp_path, 0.0) and _names(tmp_path) == []
    with joint_folder(tmp_path, "another", prepared.append):
        assert len(prepared) == 2


def test_a_folder_for_one_run_alone_is_not_shared(tmp_path: Path) -> None:
    with (
        exclusive_folder(tmp_path),
        pytest.raises(InputError, match="is in use"),
        joint_folder(tmp_path, "a"),
    ):
        pass


def test_the_lock_of_a_killed_process_is_no_holder(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("99999999\na run\n")
    assert wait_until_left(tmp_path, 0.0) and _names(tmp_path) == []
