"""A disk that takes no more ends the recording, never the training."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from wirewise.profile import Tracer


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
