"""Scripts that know nothing of wirewise are recorded by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.profile.launch import FOLLOW_SPAWNED, environment
from wirewise.trace import read

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 20))
model = DDP(net) if "RANK" in os.environ else net
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loss = torch.nn.MSELoss()
data = torch.utils.data.TensorDataset(torch.randn(90, 20))
for step, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=10)):
    optimizer.zero_grad()
    loss(model(x), x).backward()
    optimizer.step()
    if "die" in sys.argv and step == 6 and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
if "RANK" in os.environ:
    dist.destroy_process_group()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def call(*words: object):
    return CliRunner().invoke(app, ["profile", "trace", *map(str, words)])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.dist
@pytest.mark.slow
def test_a_job_of_torchrun(script, tmp_path):
    out = tmp_path / "run"
    done = call("-o", out, "--warmup", 3, "--json", tmp_path / "told.json", "--", *TORCHRUN, script)
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["ranks"], told["steps"], told["exit_code"]) == (2, [3, 4, 5, 6, 7, 8], 0)
    trace = read(out)
    kinds = {op.kind for op in trace.of(0, 4)}
    assert kinds >= {"data", "forward", "backward", "communication", "wait", "optimizer", "step"}
    assert "MSELoss" in {op.name for op in trace.of(0, 4)}
    bucket = next(op for op in trace.of(1, 5) if op.kind == "communication")
    assert bucket.parameters == ("2.bias", "2.weight", "0.bias", "0.weight")


@pytest.mark.dist
@pytest.mark.slow
def test_a_job_that_dies_leaves_what_it_did(script, tmp_path):
    done = call("-o", tmp_path / "run", "--warmup", 3, "--", *TORCHRUN, script, "die")
    assert done.exit_code == 1
    assert "ended with exit code 1" in done.output
    assert read(tmp_path / "run").steps()[:3] == [3, 4, 5]


@pytest.mark.dist
def test_one_process_without_a_group(script, tmp_path):
    done = call("-o", tmp_path / "run", "--warmup", 2, "--", sys.executable, script)
    assert done.exit_code == 0, done.output
    assert read(tmp_path / "run").world_size == 1


def test_a_command_that_trains_nothing(tmp_path):
    done = call("-o", tmp_path / "run", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert done.exit_code == 2
    assert "recorded nothing" in done.output and "ended with exit code 3" in done.output


def test_a_program_that_is_not_there(tmp_path):
    done = call("-o", tmp_path / "run", "--", "no-such-program")
    assert done.exit_code == 2
    assert "no program 'no-such-program'" in done.output


def test_functions_run_once_torch_is_there_and_a_hidden_sitecustomize_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    (tmp_path / "ours.py").write_text("import os, torch\ndef go(): print('ours', os.environ['WISH'])\n")
    base = {**os.environ, "PYTHONPATH": str(tmp_path)}
    base.pop("WIREWISE_STARTUP", None)
    found = environment({"ours:go": {"WISH": "1"}}, base)

    def printed(code: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code], env=found, capture_output=True, text=True, check=True
        )
        return done.stdout.split("\n")[:-1]

    assert printed("print('alone')") == ["theirs", "alone"]
    assert printed("import torch; print('script')") == ["theirs", "ours 1", "script"]


SPAWNING = """
import multiprocessing, sys

def work():
    import torch
    print("rank", flush=True)

if __name__ == "__main__":
    rank = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    rank.start()
    rank.join()
    sys.exit(rank.exitcode)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ranks_that_a_script_starts_by_itself_are_followed_where_asked(method, tmp_path):
    for name, text in (("torch", ""), ("ours", "def go(): print('ours', flush=True)"), ("start", SPAWNING)):
        (tmp_path / f"{name}.py").write_text(text)
    base = {name: value for name, value in os.environ.items() if name not in ("RANK", "WIREWISE_STARTUP")}

    def printed(**variables: str) -> list[str]:
        found = environment({"ours:go": variables}, base | {"PYTHONPATH": str(tmp_path)})
        words = [sys.executable, str(tmp_path / "start.py"), method]
        return subprocess.run(words, env=found, capture_output=True, text=True, check=True).stdout.split()

    assert printed() == ["rank"]
    assert printed(**{FOLLOW_SPAWNED: "1"}) == ["ours", "rank"]
