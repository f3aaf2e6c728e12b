"""Ranks take turns by a lock in the user's own folder, and go on where there is none."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from wirewise import codec
from wirewise.graph import ops
from wirewise.planners import bitwidth

module = importlib.import_module("wirewise.runtime.full_graph.warm")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was compiled, which takes no time here."""
    calls: list[str] = []
    for part in (codec, ops, bitwidth):
        monkeypatch.setattr(part, "warm", lambda name=part.__name__: calls.append(name))
    return calls


def test_the_lock_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module.warm()
    lock = tmp_path / "wirewise" / "kernels.lock"
    assert lock.stat().st_mode & 0o777 == 0o600 and lock.parent.stat().st_mode & 0o777 == 0o700
    assert len(compiled) == 3


def test_a_link_in_its_place_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("whole")
    (tmp_path / "wirewise").mkdir()
    (tmp_path / "wirewise" / "kernels.lock").symlink_to(victim)
    module.warm()
    assert victim.read_text() == "whole" and len(compiled) == 3


def test_a_user_without_a_home_compiles_all_the_same(
    monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    def unknown(number: int) -> None:
        raise KeyError(f"uid not found: {number}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    module.warm()
    assert len(compiled) == 3


def test_without_a_folder_kernels_are_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    module.warm()
    assert len(compiled) == 3
