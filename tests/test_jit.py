"""Kernels are compiled and kept wherever something can be written, and say so while they are compiled."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wirewise import jit

KERNELS = """
from wirewise import jit

@jit.njit()
def twice(x):
    return 2 * x

@jit.njit(nogil=False)
def thrice(x):
    return 3 * x
"""
RUN = """
import sys
from numba.core import caching

def refuse(self):
    raise OSError("a file system that cannot be written")

for name in ("InTreeCacheLocator", "_InTreeCacheLocator"):
    if "unwritable" in sys.argv and hasattr(caching, name):
        setattr(getattr(caching, name), "ensure_cache_path", refuse)

from wirewise import jit
jit.announce(print)
import ours
print(ours.twice(2), ours.thrice(2))
print(sum(kernel.stats.cache_hits.total() for kernel in jit.kernels()))
"""


@pytest.fixture
def run(tmp_path):
    """Runs kernels of a module in a new process, and returns its lines."""
    (tmp_path / "ours.py").write_text(KERNELS)
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def start(*words, **variables):
        path = os.pathsep.join([str(tmp_path), str(Path(jit.__file__).parents[1])])
        own = {
            "PYTHONPATH": path,
            "TMPDIR": str(temporary),
            "HOME": "/proc/none",
            "XDG_CACHE_HOME": "/proc/none",
        }
        found = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        done = subprocess.run(
            [sys.executable, "-c", RUN, *words],
            env=found | own | variables,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return start


def test_compiling_is_said_once_and_what_is_on_disk_is_not_compiled(run):
    told, result, hits = run()
    assert "compiling kernels" in told and (result, hits) == ("4 6", "0")
    assert run() == ["4 6", "2"]


def test_a_package_and_a_home_that_cannot_be_written(run, tmp_path):
    assert run("unwritable")[1:] == ["4 6", "0"]
    assert run("unwritable") == ["4 6", "2"]
    [folder] = (tmp_path / "tmp").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and list(folder.rglob("*.nbi"))


def test_a_folder_that_others_can_write_is_not_taken(run, tmp_path):
    folder = tmp_path / "tmp" / f"wirewise-kernels-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert run("unwritable")[1:] == ["4 6", "0"] and not list(folder.iterdir())
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    assert run("unwritable")[1:] == ["4 6", "0"] and not list(elsewhere.iterdir())


def test_without_any_folder_that_can_be_written_kernels_are_compiled_and_kept_nowhere(tmp_path, monkeypatch):
    def refuse():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    jit.private_folder.cache_clear()
    try:
        assert jit.private_folder() is None
    finally:
        jit.private_folder.cache_clear()


def test_the_place_that_the_user_names_comes_first(run, tmp_path):
    assert run("unwritable", NUMBA_CACHE_DIR=str(tmp_path / "named"))[1:] == ["4 6", "0"]
    assert list((tmp_path / "named").rglob("*.nbi")) and not list((tmp_path / "tmp").iterdir())


def test_every_kernel_is_compiled_by_the_one_decorator():
    package = Path(jit.__file__).parent
    others = [
        file.relative_to(package)
        for file in package.rglob("*.py")
        if file.name != "jit.py" and "cache=True" in file.read_text()
    ]
    assert not others
    assert tempfile.gettempdir() in str(jit.private_folder())


RENAMED = """
from typing import NamedTuple
from wirewise import jit

class {name}(NamedTuple):
    x: int

@jit.njit()
def twice(pair):
    return 2 * pair.x
"""


def test_compiled_code_whose_argument_types_were_renamed_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jit, "_kernels", [])
    for name in ("Before", "After", "After"):
        (tmp_path / "renamed_arguments.py").write_text(RENAMED.format(name=name))
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "renamed_arguments", raising=False)
        module = importlib.import_module("renamed_arguments")
        assert module.twice(getattr(module, name)(3)) == 6
    assert module.twice.stats.cache_hits.total() == 1


def test_processes_that_compile_for_different_types_at_once_do_not_mix_up_their_code(tmp_path, monkeypatch):
    (tmp_path / "compiled_twice.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jit, "_kernels", [])
    double = importlib.import_module("compiled_twice").double
    monkeypatch.delitem(sys.modules, "compiled_twice")
    one, other, later = (jit.njit()(double) for _ in range(3))
    files, others = one._cache._cache_file, other._cache._cache_file
    write = files._save_data

    def interrupted(name, data):
        # The other process read the index before this one changed it, and writes all its files in between.
        with monkeypatch.context() as changed:
            changed.setattr(others, "_load_index", dict)
            assert other(1.5) == 3.0
        write(name, data)

    monkeypatch.setattr(files, "_save_data", interrupted)
    assert one(2) == 4
    assert (later(1.5), later(2)) == (3.0, 4)
    assert later.stats.cache_hits.total() == 2
