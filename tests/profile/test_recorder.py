"""A disk that takes no more ends the recording, never the training."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.tiers import slow

from wirewise.errors import TraceError
from wirewise.profile import Tracer
from wirewise.trials.inside import Record, environment

SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(300, 300)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(400):
    optimizer.zero_grad()
    model(torch.ones(2, 300)).square().mean().backward()
    optimizer.step()
print(f"trained {float(sum(p.abs().sum() for p in model.parameters()))}", flush=True)
if "RANK" in os.environ:
    dist.destroy_process_group()
"""


class FullDisk:
    """A file on a disk that is full from now on."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self._file.close()
        self.closed = True


def train(steps: int, folder: Path | None = None, full_at: int = -1) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = Tracer(folder, model, optimizer=optimizer, warmup=0) if folder else None
    for step in range(steps):
        if tracer is not None and step == full_at:
            writer = tracer._recorder._writer
            writer._file = FullDisk(writer._file)  # type: ignore[assignment]
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    if tracer is not None:
        tracer.close()
    return model.weight.detach()


def test_training_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert torch.equal(train(8, tmp_path, full_at=3), train(8))
    said = capfd.readouterr().err
    assert said.count("stopped recording in step 3") == 1 and "No space left on device" in said


def test_the_last_step_may_be_the_one_that_fails(tmp_path: Path) -> None:
    assert torch.equal(train(4, tmp_path, full_at=3), train(4))


def recorded(script: Path, folder: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    task = Record(folder=str(folder), warmup=0, steps=None)
    return subprocess.run(
        [sys.executable, *launcher, str(script)],
        env=environment(task),
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("mounting a file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]).returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.lab
@pytest.mark.parametrize("left_bytes", [0, slow(4096), slow(16384)])
def test_a_script_that_is_recorded_trains_to_its_end_on_a_full_disk(
    script: Path, small_disk: Path, left_bytes: int
) -> None:
    with (small_disk / "other").open("wb", buffering=0) as file:
        file.write(bytes(65536 - left_bytes))
    done = recorded(script, small_disk / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained ") and "Traceback" not in done.stderr
    assert done.stderr.count("wirewise: rank 0 ") == 1
    assert "No space left on device" in done.stderr and "The job goes on" in done.stderr


def test_a_file_that_cannot_be_made_is_an_error_where_a_tracer_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").mkdir()
    with pytest.raises(TraceError, match="cannot write the trace"):
        train(1, tmp_path)


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_cannot_record_answers_those_that_can(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "rank-0.jsonl").mkdir(parents=True)
    done = recorded(script, folder, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 2
    assert "wirewise: rank 0 records nothing: cannot write the trace" in done.stderr
    # What rank 1 recorded is whole, with its round trips to the clock of rank 0.
    (folder / "rank-0.jsonl").rmdir()
    text = (folder / "rank-1.jsonl").read_text()
    assert text.endswith("\n") and '"times"' in text and '"probe"' in text
