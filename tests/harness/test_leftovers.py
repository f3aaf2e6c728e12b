import os
import subprocess
import threading

import pytest
import torch.distributed as dist

from tests.harness import leftovers
from tests.harness.leftovers import Snapshot


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(leftovers, "_GRACE_S", 0.2)


def test_a_clean_test_leaves_nothing():
    before = Snapshot.take()
    subprocess.run(["true"], check=True)
    assert before.leftovers() == []


def test_a_child_process_is_named():
    before = Snapshot.take()
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert before.leftovers() == [f"child process {child.pid} (sleep 60)"]
    finally:
        child.kill()
        child.wait()


def test_a_thread_is_named_but_waiters_are_not():
    before = Snapshot.take()
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, name=name) for name in ("wirewise-wait-3", "forgotten")]
    for thread in threads:
        thread.start()
    try:
        assert before.leftovers() == ["thread forgotten"]
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_environment_is_named_and_put_back(monkeypatch):
    monkeypatch.setenv("WIREWISE_KEPT", "1")
    before = Snapshot.take()
    os.environ["WIREWISE_KEPT"] = "2"
    os.environ["WIREWISE_NEW"] = "1"
    assert before.leftovers() == ["environment variable WIREWISE_KEPT", "environment variable WIREWISE_NEW"]
    assert os.environ["WIREWISE_KEPT"] == "1"
    assert "WIREWISE_NEW" not in os.environ


def test_namespaces_of_this_process_and_of_the_dead_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "_NAMESPACES", tmp_path)
    before = Snapshot.take()
    ours, living, dead = f"ww-{os.getpid()}-1-2-h0", "ww-1-1-2-h0", "ww-4999999-1-2-h0"
    for name in (ours, living, dead, "other"):
        (tmp_path / name).touch()
    assert sorted(before.leftovers()) == sorted(f"network namespace {name}" for name in (ours, dead))


def test_a_process_group_is_named_and_destroyed(tmp_path):
    before = Snapshot.take()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    assert before.leftovers() == ["an initialised default process group"]
    assert not dist.is_initialized()
