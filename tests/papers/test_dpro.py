"""Record, replay, plan, measure: on a script that knows nothing of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wirewise import plans
from wirewise.cli.main import app

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

assert os.environ["WIREWISE_TRIAL"] in ("recorded", "present-0", "planned-0", "present-1", "planned-1")
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
net = torch.nn.Sequential(*[part for _ in range(4) for part in (torch.nn.Linear(200, 200), torch.nn.ReLU())])
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(10_000):
    optimizer.zero_grad()
    model(torch.randn(4, 200)).pow(2).sum().backward()
    optimizer.step()
    if step == 2 and "fail" in sys.argv:
        raise RuntimeError("the third step is too much")
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def call(*words: object):
    return CliRunner().invoke(app, ["run", "dpro", *map(str, words)])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.dist
@pytest.mark.timeout(300)  # Five starts of torchrun: importing a torch with CUDA takes ten seconds.
def test_the_whole_way(script, tmp_path):
    out, told = tmp_path / "run", tmp_path / "told.json"
    # From the second step on, in which DistributedDataParallel makes the buckets that it names afterwards.
    done = call("-o", out, "--warmup", 1, "--steps", 4, "--pairs", 2, "--json", told, "--", *TORCHRUN, script)
    assert done.exit_code == 0, done.output
    result = json.loads(told.read_text())
    assert json.loads((out / "result.json").read_text()) == result
    assert len(result["present_step_s"]) == len(result["planned_step_s"]) == 2
    assert result["kept"] == (result["ci95"][0] > 0)
    plan = plans.load(out / "plan.json")
    names = [name for bucket in plan.buckets for name in bucket.parameters]
    assert sorted(names) == sorted(f"{i}.{kind}" for i in (0, 2, 4, 6) for kind in ("bias", "weight"))
    # Runs under the plan send its buckets.
    sizes = {bucket.size_bytes for bucket in plan.buckets}
    text = (out / "planned-0" / "rank-0.jsonl").read_text()
    assert any(f'"size_bytes":{size}' in text for size in sizes)
    page = (out / "report.html").read_text()
    assert "<svg" in page and "saved by the plan, measured" in page and f"{result['gain']:.1%}" in page


@pytest.mark.dist
@pytest.mark.slow
def test_a_command_that_fails_is_named_with_its_last_words(script, tmp_path):
    done = call("-o", tmp_path / "run", "--", *TORCHRUN, script, "fail")
    assert done.exit_code == 2
    assert "exit code 1" in done.output and "log.txt" in done.output


@pytest.mark.dist
@pytest.mark.slow
def test_steps_that_do_not_tell_what_buckets_hold_are_refused(script, tmp_path):
    done = call("-o", tmp_path / "run", "--warmup", 0, "--steps", 2, "--", *TORCHRUN, script)
    assert done.exit_code == 2
    told = " ".join(done.output.split())
    assert "steps 0 to 1 (--warmup 0, --steps 2) do not tell which parameters" in told
    assert not (tmp_path / "run" / "plan.json").exists()
