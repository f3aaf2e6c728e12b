"""Compressed gradients under Hugging Face Accelerate."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.harness.processes import run_ranks_as_processes
from wirewise.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
WORLD = 2


def begin(rank, folder=None):
    """A prepared model under compression; Accelerate finds its ranks in the environment."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from wirewise.integrations.accelerate import compress

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD)
    )
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    state = compress(accelerator, model, codec="topk")
    if folder is not None:
        accelerator.load_state(folder)
    return accelerator, model, optimizer, state


def train(rank, job, steps):
    accelerator, model, optimizer, _ = job
    for step in steps:
        random = torch.Generator().manual_seed(100 * step + rank)
        with accelerator.accumulate(model):
            loss = model(torch.randn(8, 6, generator=random)).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def whole_and_resumed(rank, folder):
    job = begin(rank)
    assert job[3].bytes_sent == 0
    train(rank, job, range(6))
    job[0].save_state(folder)
    sent = job[3].bytes_sent
    whole = train(rank, job, range(6, 12))
    job[3].close()
    again = begin(rank, folder)
    resumed = train(rank, again, range(6, 12))
    again[3].close()
    return whole, resumed, sent


@pytest.mark.dist
def test_a_loaded_state_goes_on_exactly(tmp_path):
    found = run_ranks_as_processes(WORLD, whole_and_resumed, str(tmp_path))
    for whole, resumed, sent in found:
        assert torch.equal(whole, resumed)
        assert torch.equal(whole, found[0][0])
        # Three of six micro-steps are exchanged; all gradients take 652 bytes.
        assert 0 < sent < 3 * 652 / 5 and sent % 3 == 0
    assert sorted(path.name for path in tmp_path.glob("wirewise-*")) == [
        "wirewise-rank0.pt",
        "wirewise-rank1.pt",
    ]


def refuse(rank):
    from wirewise.integrations.accelerate import compress

    job = begin(rank)
    with pytest.raises(InputError, match="got a Linear of 2 processes; expected the DistributedDataParallel"):
        compress(job[0], nn.Linear(2, 2), codec="efsign")
    job[3].close()


@pytest.mark.slow
@pytest.mark.dist
def test_a_model_that_is_not_wrapped_is_refused():
    run_ranks_as_processes(WORLD, refuse)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("example", ["accelerate_text", "lightning_text"])
def test_the_examples_run(example):
    script = ROOT / "examples" / example / "train.py"
    words = ["--nproc-per-node", "2", script, "--steps", "4", "--width", "16", "--layers", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"step 0: loss 5\.\d", done.stdout)
    assert int(re.search(r"sent (\d+) bytes", done.stdout)[1]) > 0
