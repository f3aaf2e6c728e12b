"""A run that is started on several hosts is recorded into one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trials.inside.test_recording import SCRIPT
from wirewise.files import LOCK
from wirewise.hosts import free_port
from wirewise.trace import read

TORCHRUN = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
TRACE = ["-m", "wirewise", "profile", "trace", "--warmup", "2", "-o"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def hosts(script: Path, folders: list[Path]) -> list[tuple[int, str]]:
    """Exit code and output of the command that traces, started for each of two hosts."""
    port = f"--master-port={free_port('127.0.0.1')}"
    started = [
        subprocess.Popen(
            [
                sys.executable,
                *TRACE,
                folder,
                "--",
                sys.executable,
                *TORCHRUN,
                port,
                f"--node-rank={host}",
                script,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host, folder in enumerate(folders)
    ]
    told = [process.communicate(timeout=120)[0] for process in started]
    return [(process.returncode, text) for process, text in zip(started, told, strict=True)]


@pytest.mark.dist
def test_two_hosts_record_into_one_folder_and_both_say_so(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    # Of an older run with more ranks.
    (folder / "rank-7.jsonl").write_text("{}\n")
    for code, text in hosts(script, [folder, folder]):
        assert code == 0 and "of 2 ranks" in text, text
    assert sorted(file.name for file in folder.iterdir()) == ["rank-0.jsonl", "rank-1.jsonl"]
    assert read(folder).steps()[0] == 2 and not (folder / LOCK).exists()


@pytest.mark.dist
@pytest.mark.slow
def test_hosts_without_a_common_folder_say_that_parts_are_missing(script: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for host, (code, text) in enumerate(hosts(script, folders)):
        assert code == 0 and "of 1 ranks" in text, text
        assert f"rank {1 - host} is missing, of 2" in text and "wirewise trace merge" in text
    merged = [sys.executable, "-m", "wirewise", "trace", "merge", *folders, "-o", tmp_path / "all"]
    assert subprocess.run(merged, capture_output=True, timeout=100).returncode == 0
    assert read(tmp_path / "all").world_size == 2


@pytest.mark.lab
@pytest.mark.slow
def test_ranks_that_the_lab_starts_record_into_one_folder(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    traced = [*TRACE, str(folder), "--json", str(tmp_path / "told.json"), "--", sys.executable, str(script)]
    run = [sys.executable, "-m", "wirewise", "lab", "run", "--hosts", "2", "--", *traced]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "told.json").read_text())["ranks"] == 2
    assert done.stderr.count("Recorded") == 1 and read(folder).world_size == 2
