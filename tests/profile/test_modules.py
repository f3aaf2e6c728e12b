"""Forward and backward passes, recorded."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from tests.harness.processes import run_ranks_as_processes
from tests.profile.test_tracer import model

from wirewise.profile import Tracer
from wirewise.trace import read


def checkpointed(rank: int, folder: str) -> None:
    net = model()
    with Tracer(folder, net, warmup=0, steps=None, round_trips=0) as tracer:
        hidden = torch.utils.checkpoint.checkpoint(
            net[:3], torch.ones(2, 40, requires_grad=True), use_reentrant=True
        )
        net[3:](hidden).sum().backward()
        tracer.step()


@pytest.mark.slow
@pytest.mark.dist
def test_a_pass_inside_a_pass(tmp_path):
    run_ranks_as_processes(1, checkpointed, str(tmp_path))
    ops = read(tmp_path).of(0, 0)
    assert sum(op.name == "backward" for op in ops) == 1
    assert sum(op.gradient_bytes for op in ops) == sum(p.numel() * 4 for p in model().parameters())
