"""Advice on scripts that know nothing of it."""

import json
import sys

import msgspec
import pytest

from wirewise.advice import FAMILIES
from wirewise.advice.options import AdviceOptions
from wirewise.advice.running import _candidate, advise_command
from wirewise.errors import InputError, PeerError
from wirewise.plans import Bucket, FusionPlan
from wirewise.plans import save as save_plan

HEAD = """
import os, time, torch
from torch import nn
torch.set_num_threads(1)
"""
LOADER = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, number):
        time.sleep(0.004)
        return torch.randn(64)

dist.init_process_group("gloo")
model = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Slow(), batch_size=16):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
ALONE = """
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
"""
FEW = AdviceOptions(codecs=("fp16",), warmup=2, steps=8, trials=1, restarts=0)


def script(tmp_path, text, *ranks):
    file = tmp_path / "train.py"
    file.write_text(HEAD + text)
    return [sys.executable, *ranks, str(file)]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(400)  # three starts of two ranks that import torch
def test_a_planted_loader_is_found_and_plans_are_tried_beside_it(tmp_path):
    said = []
    two = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    found = advise_command(script(tmp_path, LOADER, *two), tmp_path / "out", said.append, FEW)
    assert found.bound_by == "data" and "Loading data" in found.bound_reason
    assert found.ranks == 2 and found.steps >= 6 and found.compression is not None
    first = found.candidates[0]
    assert first.family == "loader" and first.gain(found.step_s) > 0.5 and found.lines == first.lines
    assert {one.planner for one in found.candidates if one.measured_step_s} >= {"cupcake", "fp16"}, said
    assert json.loads((tmp_path / "out" / "advice.json").read_bytes()) == json.loads(found.to_json())
    assert (tmp_path / "out" / "advice.html").exists()


@pytest.mark.slow
@pytest.mark.dist
def test_one_process_in_a_folder_of_its_own_is_advised_without_codecs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = advise_command(script(tmp_path, ALONE), tmp_path / "out", lambda _: None, FEW)
    assert found.ranks == 1 and found.compression is None
    assert "had no model in DistributedDataParallel" in found.not_applicable["codecs"]
    assert {one.family for one in found.candidates} | set(found.not_applicable) == set(FAMILIES)
    assert found.advice.startswith("Leave it as it is")


@pytest.mark.dist
def test_a_script_that_never_steps_is_told(tmp_path):
    with pytest.raises(
        PeerError, match="ended with exit code 0 before its first step was recorded; its log is"
    ):
        advise_command(script(tmp_path, "print('done')"), tmp_path / "out", lambda _: None, FEW)
    with pytest.raises(InputError, match="there is no program 'nonsense'"):
        advise_command(["nonsense"], tmp_path / "out", lambda _: None, FEW)
    with pytest.raises(InputError, match="unknown gradient codec 'best'"):
        advise_command(["python"], tmp_path, lambda _: None, AdviceOptions(codecs=("best",)))


@pytest.mark.parametrize("codec", ["none", "efsign"])
def test_what_was_tried_has_its_plan_lines_and_risk(tmp_path, codec):
    scheme = "all_reduce" if codec == "none" else "all_gather"
    bucket = Bucket(parameters=("weight",), size_bytes=400, codec=codec, scheme=scheme)
    plan = FusionPlan(world_size=2, planner="cupcake", buckets=(bucket,), predicted_step_s=0.5)
    save_plan(plan, tmp_path / f"tried-{codec}.json")
    advice = msgspec.convert({"candidates": []}, _Candidates)
    one = _candidate(codec, 0.6, [0.6] * 8, advice, tmp_path, FEW)
    assert (one.family, one.planner) == (("buckets", "cupcake") if codec == "none" else ("codecs", "efsign"))
    assert one.predicted_step_s == 0.5 and one.measured_step_s == 0.6 and one.ci95 == (0.6, 0.6)
    assert ("signs" in one.risk) == (codec != "none") and f"tried-{codec}.json" in one.lines[-1]


class _Candidates(msgspec.Struct):
    candidates: list[str]
