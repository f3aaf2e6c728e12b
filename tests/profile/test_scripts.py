"""Scripts of many kinds: recorded they train as they do unrecorded, and everything that they send is in the trace."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.harness.processes import run_ranks_as_processes
from tests.profile.script_jobs import (
    JOBS,
    WARMUP,
    gan,
    mlp,
    sharded,
    state,
    stepping_inside,
    tensor_parallel,
    unfrozen_later,
)
from torch import Tensor
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.profile import Tracer
from wirewise.trace import Op, Trace, read


def twice(rank: int, folder: str) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Parameters after each job, without and with a tracer."""
    found = {}
    for job in JOBS:
        torch.manual_seed(0)
        plain = state(job(rank))
        torch.manual_seed(0)
        with Tracer(f"{folder}/{job.__name__}", optimizer="first", warmup=WARMUP, steps=None) as tracer:
            tracer.watch_all()
            models = job(rank)
        found[job.__name__] = plain, state(models)
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return folder, run_ranks_as_processes(2, twice, str(folder), timeout_s=120)


@pytest.fixture
def trace_of(recorded):
    return lambda job: read(recorded[0] / job.__name__)


def sent(trace: Trace, step: int = WARMUP + 3) -> Counter[str]:
    return Counter(op.collective for op in trace.of(0, step) if op.kind == "communication")


def buckets(trace: Trace, step: int = WARMUP + 3) -> list[Op]:
    return [op for op in trace.of(1, step) if op.kind == "communication" and op.parameters]


pytestmark = pytest.mark.dist


@pytest.mark.parametrize("job", JOBS)
def test_recording_changes_no_bit_and_the_command_shows_the_run(job, recorded):
    folder, ranks = recorded
    for found in ranks:
        plain, traced = found[job.__name__]
        assert plain and all(map(torch.equal, plain, traced))
    result = CliRunner().invoke(app, ["trace", "show", str(folder / job.__name__)])
    assert result.exit_code == 0, result.output
    steps = read(folder / job.__name__).steps()
    assert steps[:4] == [WARMUP, WARMUP + 1, WARMUP + 2, WARMUP + 3]
    assert all(f"\n{step}\t" in result.stdout for step in steps)


def test_buckets_of_two_models_that_are_frozen_in_turn_have_their_names(trace_of):
    trace = trace_of(gan)
    names = {name for name, _ in mlp(8, 16).named_parameters()}
    assert [set(op.parameters) for op in buckets(trace)] == [names, names]
    # The discriminator's optimizer is the first that steps, so a recorded step ends with it.
    sizes = [sum(4 * p.numel() for p in mlp(*shape).parameters()) for shape in ((8, 16), (16, 1))]
    assert [op.size_bytes for op in buckets(trace)] == sizes
    assert len({op.name for op in buckets(trace)}) == 2


def test_collectives_of_sharded_tensors_are_recorded_and_waited_for(trace_of):
    trace = trace_of(tensor_parallel)
    ops = trace.of(0, WARMUP + 1)
    forward = [op for op in ops if op.collective == "all_reduce" and op.size_bytes == 16 * 4 * 4]
    waits = {(op.group, op.seq): op for op in ops if op.kind == "wait"}
    assert forward and (forward[0].group, forward[0].seq) in waits
    assert waits[forward[0].group, forward[0].seq].end_s >= forward[0].start_s


def test_the_norm_that_clips_sharded_gradients_is_recorded(trace_of):
    found = sent(trace_of(sharded))
    assert found["all_reduce"] >= 1 and found["all_gather"] >= 1 and found["reduce_scatter"] == 1


def test_an_optimizer_that_steps_inside_a_backward_pass_ends_the_step_behind_it(trace_of):
    ops = trace_of(stepping_inside).of(0, WARMUP + 1)
    whole = next(op for op in ops if op.kind == "backward" and op.name == "backward")
    step = next(op for op in ops if op.kind == "step")
    inside = [op for op in ops if op.kind == "optimizer"]
    assert len(inside) == 4 and all(whole.start_s <= op.start_s <= whole.end_s for op in inside)
    assert step.end_s >= whole.end_s and step.start_s <= whole.start_s


def test_gradients_of_what_is_unfrozen_later_are_seen(trace_of):
    trace = trace_of(unfrozen_later)
    seen = functools.partial(gradients, trace)
    assert seen(WARMUP) == {"2"} and seen(WARMUP + 4) == {"0", "2"}


def gradients(trace: Trace, step: int) -> set[str]:
    return {op.name for op in trace.of(0, step) if op.gradient_bytes}


def test_a_capture_of_functional_collectives_records_nothing(tmp_path: Path):
    run_ranks_as_processes(2, capture, str(tmp_path))
    assert sent(read(tmp_path), 0) == {"all_reduce": 1}


def capture(_rank: int, folder: str) -> None:
    from torch.distributed import _functional_collectives as functional
    from torch.fx.experimental.proxy_tensor import make_fx

    def total(x: Tensor) -> Tensor:
        return functional.all_reduce(x, "sum", dist.group.WORLD) + 1

    with Tracer(folder, warmup=0, steps=None, round_trips=5) as tracer:
        graph = make_fx(total, tracing_mode="fake")(torch.ones(3))
        assert graph(torch.ones(3)).tolist() == [3.0] * 3
        tracer.step()


TRAINER = """
import sys
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

class Pairs(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return {"x": torch.full((4,), number / 64), "labels": torch.zeros(2)}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.Linear(16, 2))
    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": (out - labels).square().mean(), "logits": out}

torch.manual_seed(0)
asked = TrainingArguments(
    output_dir=sys.argv[1] + "-out", max_steps=8, per_device_train_batch_size=2, report_to=[], save_strategy="no",
    use_cpu=True, ddp_backend="gloo", disable_tqdm=True, dataloader_pin_memory=False, seed=3,
)
trainer = Trainer(Model(), asked, train_dataset=Pairs())
trainer.train()
if trainer.is_world_process_zero():
    torch.save(trainer.model.state_dict(), sys.argv[1])
"""


OF_THE_JOBS = """
import sys
import torch
import torch.distributed as dist
from tests.profile import script_jobs

dist.init_process_group("gloo")
torch.manual_seed(0)
found = script_jobs.state(getattr(script_jobs, "JOB")(dist.get_rank()))
if dist.get_rank() == 0:
    torch.save(dict(enumerate(found)), sys.argv[1])
dist.destroy_process_group()
"""

LIGHTNING = """
import sys
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 3))
    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

lightning.seed_everything(0, verbose=False)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=8, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
module = Module()
trainer.fit(module, DataLoader(TensorDataset(torch.randn(64, 6)), batch_size=4))
if trainer.is_global_zero:
    torch.save(module.state_dict(), sys.argv[1])
"""

SCRIPTS = {job.__name__: OF_THE_JOBS.replace("JOB", job.__name__) for job in (gan, tensor_parallel, sharded)}
SCRIPTS |= {"transformers": TRAINER, "lightning": LIGHTNING}


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(600)  # two jobs of two ranks that import transformers
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_under_the_command_is_recorded_and_trains_as_without(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind in ("transformers", "lightning"):
        pytest.importorskip(kind)
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[kind])
    here = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", f"{here}:{os.environ.get('PYTHONPATH', '')}")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    plain, traced, run = (str(tmp_path / name) for name in ("plain.pt", "traced.pt", "run"))
    done = subprocess.run([*torchrun, str(script), plain], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    words = ["profile", "trace", "-o", run, "--warmup", "2", "--steps", "4", "--"]
    result = CliRunner().invoke(app, [*words, *torchrun, str(script), traced])
    assert result.exit_code == 0, result.output
    before, after = torch.load(plain), torch.load(traced)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    trace = read(run)
    assert [recorded.header.world_size for recorded in trace.ranks] == [2, 2]
    assert sent(trace, trace.steps()[1])["all_reduce"] >= 1
