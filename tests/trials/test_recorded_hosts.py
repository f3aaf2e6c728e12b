"""Recording on hosts of a lab: no bit changes, and a slow link is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wirewise import lab
from wirewise.trace import read

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(14):
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), f"{sys.argv[1]}/rank-{dist.get_rank()}.pt")
dist.destroy_process_group()
"""
WIREWISE = [sys.executable, "-m", "wirewise"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.lab
@pytest.mark.slow
def test_each_host_of_a_lab_records_into_one_folder_and_no_bit_changes(script: Path, tmp_path: Path) -> None:
    for name in ("plain", "traced"):
        (tmp_path / name).mkdir()
    with lab.Lab(2, "200mbit") as network:
        assert network.run([str(script), str(tmp_path / "plain")], launcher="direct", timeout_s=100).ok
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += [f"--master-addr={network.address(0)}", "--master-port=29511"]
        traced = [*WIREWISE, "profile", "trace", "--warmup", "3", "-o", str(tmp_path / "run"), "--"]
        commands = [
            [*traced, *torchrun, f"--node-rank={host}", str(script), str(tmp_path / "traced")]
            for host in range(2)
        ]
        done = network.run(commands, launcher="none", timeout_s=110)
        assert done.ok, done.tails
    for rank in range(2):
        plain, recorded = (tmp_path / name / f"rank-{rank}.pt" for name in ("plain", "traced"))
        assert plain.read_bytes() == recorded.read_bytes()
    assert read(tmp_path / "run").world_size == 2


@pytest.mark.lab
@pytest.mark.slow
def test_a_slow_link_is_named(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = ["lab", "run", "--hosts", "3", "--link", "1gbit", "--links", "2=30mbit", "--", script, tmp_path]
    traced = [*WIREWISE, "profile", "trace", "--warmup", "3", "-o", folder, "--", *WIREWISE, *job]
    done = subprocess.run(list(map(str, traced)), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run(
        [*WIREWISE, "trace", "show", folder, "--json", "-"], capture_output=True, text=True
    )
    told = json.loads(shown.stdout)
    assert told["bound_by"] == "network", told["bound_by"]
    text = subprocess.run([*WIREWISE, "trace", "show", folder], capture_output=True, text=True).stdout
    slowest = text.partition("The slowest link is that of host ")[2].partition(".")[0]
    assert slowest.endswith("-2"), text
