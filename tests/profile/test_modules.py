"""Forward and backward passes, recorded."""

from __future__ import annotations

import copy
import pickle

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


def test_an_evaluation_inside_a_step_takes_no_memory_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("wirewise.profile.recorder._MOST_ROWS", 40)
    net = model()
    with Tracer(tmp_path, net, warmup=0, steps=None) as tracer:
        for calls in (1, 500, 1):
            for _ in range(calls):
                net(torch.ones(2, 40))
            tracer.step()
    trace = read(tmp_path)
    assert trace.steps() == [0, 1, 2] and len(trace.of(0, 0)) == len(trace.of(0, 2))
    assert 40 <= len(trace.of(0, 1)) < 60
    # Time without a forward pass is the script's own.
    [script] = [op for op in trace.of(0, 1) if op.name == "script"]
    [step] = [op for op in trace.of(0, 1) if op.kind == "step"]
    assert script.end_s - script.start_s == pytest.approx(step.end_s - step.start_s, abs=1e-4)


def test_copies_and_files_of_a_recorded_model_are_as_without_a_recording(tmp_path):
    net = model()
    with Tracer(tmp_path, net, warmup=0, steps=None) as tracer:
        net(torch.ones(2, 40)).sum().backward()
        # As `torch.save(net)`, and a model that is averaged over steps.
        others = [pickle.loads(pickle.dumps(net)), copy.deepcopy(net)]
        for other in others:
            other(torch.ones(2, 40))
        tracer.step()
    for module in (module for one in (net, *others) for module in one.modules()):
        assert not module._forward_hooks and not module._forward_pre_hooks
    # Passes of the copies are not the model's.
    assert sum(op.name == "forward" for op in read(tmp_path).of(0, 0)) == 1
