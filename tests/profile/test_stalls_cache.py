"""Folders of cached items go with their process, also one that is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wirewise.files import owned_folder
from wirewise.profile.stalls import cache


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "memory_folder", lambda: tmp_path)
    return tmp_path


def left_behind(memory: Path, name: str, age_s: float = 3600.0) -> Path:
    folder = memory / f"wirewise-cache-{name}"
    folder.mkdir()
    (folder / "0.pickle").write_bytes(b"item")
    then = folder.stat().st_mtime - age_s
    os.utime(folder, (then, then))
    return folder


def test_a_folder_goes_at_the_end_and_after_an_error(memory: Path) -> None:
    with pytest.raises(ZeroDivisionError), cache.cache_folder() as folder:
        (folder / "0.pickle").write_bytes(b"item")
        raise ZeroDivisionError
    assert list(memory.iterdir()) == []


def test_only_folders_of_dead_processes_are_removed(memory: Path) -> None:
    dead, used, young = (left_behind(memory, name, age) for name, age in (("a", 3600), ("b", 3600), ("c", 0)))
    other = memory / "wirewise-cache-file"
    other.touch()
    os.utime(other, (0, 0))
    with owned_folder(used):
        assert cache.remove_stale() == [dead]
    assert sorted(memory.iterdir()) == sorted([used, young, other])
    with cache.cache_folder():
        assert not used.exists()
