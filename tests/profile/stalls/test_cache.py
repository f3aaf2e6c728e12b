"""Caches in memory go with their owners."""

import signal
import tempfile
from pathlib import Path

import pytest
from tests.lab.helpers import start_owner
from typer.testing import CliRunner

from wirewise.cli.lab import app
from wirewise.profile.stalls import cache

_OWNER = """
import time
from pathlib import Path
from wirewise.cli.main import app
from wirewise.__main__ import main
from wirewise.profile.stalls import cache

@app.command("hold")
def hold(folder: str) -> None:
    cache.memory_folder = lambda: Path(folder)
    with cache.cache_folder() as made:
        (made / "0").write_bytes(b"item")
        print(made, flush=True)
        time.sleep(300)

main()
"""


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "memory_folder", lambda: tmp_path)
    return tmp_path


def test_one_of_a_dead_owner_is_removed_and_one_in_use_stays(memory):
    with start_owner(_OWNER, "hold", str(memory)) as owner:
        held = Path(owner.stdout.readline().strip())
        assert cache.remove_stale() == [] and held.exists()
        owner.kill()
        owner.wait()
        assert (held / "0").exists()
        with cache.cache_folder() as own:
            assert not held.exists()
            assert cache.remove_stale() == [] and own.exists()
    assert list(memory.iterdir()) == []


def test_sigterm_removes_it(memory):
    with start_owner(_OWNER, "hold", str(memory)) as owner:
        held = Path(owner.stdout.readline().strip())
        owner.send_signal(signal.SIGTERM)
        assert owner.wait(timeout=20) == 128 + signal.SIGTERM
        assert not held.exists()


def test_what_is_no_cache_of_ours_stays(memory, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (memory / "wirewise-cache-link").symlink_to(elsewhere)
    (memory / "wirewise-cache-file").write_text("text")
    (memory / "other").mkdir()
    assert cache.remove_stale() == []
    assert len(list(memory.iterdir())) == 3


def test_lab_clean_removes_it(memory, monkeypatch):
    monkeypatch.setattr("wirewise.lab.clean", list)
    stale = Path(tempfile.mkdtemp(prefix="wirewise-cache-", dir=memory))
    done = CliRunner().invoke(app, ["clean"])
    assert done.exit_code == 0 and "Removed 1 caches in memory" in done.output
    assert not stale.exists()
