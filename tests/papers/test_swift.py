"""A training under kills, next to other ways: what a job may ask for, what is made of the steps, and the whole way."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.hosts import ProcessIdentity
from wirewise.runtime.recovery import Recoveries, RecoveryTimes
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions
from wirewise_papers.swift.experiment import checkpoint_interval, kills_of, predict_recovery
from wirewise_papers.swift.job import SwiftJob, script_settings
from wirewise_papers.swift.kills import Kill, KillCost
from wirewise_papers.swift.own_script import run as run_command
from wirewise_papers.swift.records import FinalState
from wirewise_papers.swift.ways import TrainingSummary, record_of, recoveries_of

KILL = Kill(1, 103.0, ProcessIdentity(77, 1, 1), 2003.0)
FOUND = TrainingSummary(
    steps=101,
    seconds=12.5,
    step_s=0.1,
    mean_step_s=0.11,
    kills=[KILL],
    spared=1,
    survived=[KillCost(0.2, 0.3, 0)],
    first_s=100.0,
)
SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from wirewise.runtime import recovery
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
data = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), 4, shuffle=True)
training = recovery.protect(model, torch.optim.SGD(model.parameters(), 0.1), data, steps=int(sys.argv[1]))
for x, y in training:
    with training.step():
        time.sleep(0.05)
        torch.nn.functional.mse_loss(training.model(x), y).backward()
"""


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"hosts": 1}, "hosts is 1; expected at least 2"),
        ({"kills": 30, "steps": 20}, "kills is 30 and steps 20; expected no more kills than steps"),
        ({"strategy": "log"}, "strategy is 'log' and job 'ddp'"),
        ({"strategy": "checkpoint"}, "strategy is 'checkpoint' and job 'ddp'"),
        ({"job": "pipeline", "strategy": "replica"}, "job 'pipeline'; expected auto or log"),
        (
            {"job": "pipeline", "consistency": "undo"},
            "consistency is 'undo' and job 'pipeline'; expected auto",
        ),
        ({"job": "pipeline", "batch_size": 30}, "expected a multiple of 4 microbatches"),
        ({"job": "full-graph", "against": ("commit",)}, "job 'full-graph'; expected checkpoint"),
        (
            {"job": "pipeline", "against": ("checkpoint", "commit")},
            "against is checkpoint,commit and job 'pipeline'",
        ),
        ({"against": ("hope",)}, "expected some of: checkpoint, commit"),
    ],
)
def test_a_job_that_cannot_be_carried_out_is_refused(settings, told):
    with pytest.raises(InputError, match=told):
        SwiftJob(**settings)


def test_kills_are_those_of_the_seed_within_the_training():
    kills = kills_of(SwiftJob(kills=4), FOUND)
    assert kills == kills_of(SwiftJob(kills=4), FOUND) != kills_of(SwiftJob(kills=4, seed=1), FOUND)
    assert all(0.6 < at_s < 11.9 and rank in (0, 1, 2) for at_s, rank in kills)
    assert script_settings(SwiftJob(), every=7)["every"] == 7


def test_checkpoints_are_as_often_as_young_says():
    assert checkpoint_interval(5.0, 0.025, 0.1) == 5
    assert checkpoint_interval(5.0, 0.0, 0.1) == 1


def test_a_way_is_told_by_its_steps():
    record = record_of("commit", FOUND, 0.09)
    assert record.goodput == pytest.approx(100 * 0.09 / 12.5) and record.recovered_s == (0.3,)
    assert (record.kills, record.spared, record.bit_equal) == (1, 1, None)


def test_phases_begin_with_the_signal(tmp_path):
    (tmp_path / "agent-0").mkdir()
    recovered = RecoveryTimes(
        generation=2, ranks=(1,), causes=("killed",), seen_s=2003.01, noticed_s=2003.05, regrouped_s=2003.1,
        decided_s=2003.12, restored_s=2003.2, resumed_s=2003.21, committed_s=2003.3, strategy="replica",
    )  # fmt: skip
    cut_short = RecoveryTimes(generation=2, ranks=(1,), causes=("killed",), seen_s=2003.01)
    told = Recoveries(world_size=3, recoveries=[cut_short, recovered])
    (tmp_path / "agent-0" / "recoveries.json").write_bytes(msgspec.json.encode(told))
    job = SwiftJob()
    _, plan = predict_recovery(job, FOUND, FinalState(digest="0", bytes=10_000_000), 5.0)
    [one] = recoveries_of(tmp_path, FOUND, True, plan)
    assert (one.rank, one.at_s, one.strategy, one.bit_equal) == (1, 3.0, "replica", True)
    seconds = [one.detect_s, one.fence_s, one.regroup_s, one.restore_s, one.resume_s]
    assert seconds == pytest.approx([0.01, 0.04, 0.05, 0.1, 0.1], abs=1e-6)
    # A link of 1 Gbit/s into the host of the new process.
    assert one.predicted_s["restore"] == pytest.approx(0.08, rel=0.2) and set(one.predicted_s) == set(
        one.phases_s
    )


def test_a_pipeline_is_planned_stage_by_stage_and_its_recomputing_is_told(tmp_path):
    (tmp_path / "agent-0").mkdir()
    recovered = RecoveryTimes(
        generation=2, ranks=(1,), causes=("killed",), seen_s=2003.01, noticed_s=2003.05, regrouped_s=2003.1,
        decided_s=2003.1, restored_s=2003.2, resumed_s=2003.5, committed_s=2003.6, strategy="log",
        replayed_iterations=7,
    )  # fmt: skip
    told = Recoveries(world_size=3, recoveries=[recovered])
    (tmp_path / "agent-0" / "recoveries.json").write_bytes(msgspec.json.encode(told))
    job = SwiftJob(job="pipeline")
    assert job.others == ("checkpoint",)
    trace, plan = predict_recovery(job, FOUND, FinalState(digest="0", bytes=1_000_000), 5.0)
    assert [stage.ranks for stage in plan.stages] == [(0,), (1,), (2,)] and len(trace.messages) == 4
    [one] = recoveries_of(tmp_path, FOUND, True, plan)
    assert (one.recompute_s, one.resume_s) == pytest.approx((0.3, 0.1), abs=1e-6)
    assert one.strategy == "log" and one.replayed_iterations == 7


def test_a_command_that_is_no_torchrun_of_a_script_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    settings = {"spares": 1, "kills": 0, "seed": 0, "limits": AgentLimits(), "changes": ResumeOptions()}
    for command in ([sys.executable, str(script)], ["torchrun", "--nproc-per-node", "2", "-m", "train"]):
        with pytest.raises(InputError, match="expected torchrun --nproc-per-node RANKS SCRIPT"):
            run_command(command, tmp_path, print, **settings)
    with pytest.raises(InputError, match=r"gone.py' is no file; expected the script"):
        run_command(["torchrun", str(tmp_path / "gone.py")], tmp_path, print, **settings)
    words = ["run", "swift", "--optimizer", "sgd", "--", "torchrun", str(script)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "--optimizer is of the built-in training" in done.output


@pytest.mark.dist
@pytest.mark.slow
def test_a_users_script_survives_a_kill(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    # The kill of this seed is due 0.7 s after the start of the training.
    words = ["run", "swift", "--kills", "1", "--seed", "1", "--out", str(tmp_path / "run")]
    words += ["--json", str(tmp_path / "found.json")]
    done = CliRunner().invoke(app, [*words, "--", "torchrun", "--nproc-per-node", "2", str(script), "60"])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kills"] == len(found["recoveries"]) == 1
    for one in found["recoveries"]:
        assert one["strategy"] == "replica" and one["lost_iterations"] == 0 and one["detect_s"] >= 0
    assert "Timeline" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("job", ["ddp", "pipeline", "full-graph"])
def test_a_training_survives_in_a_lab_bit_by_bit(tmp_path, monkeypatch, job):
    if job == "full-graph":
        # Restarts of its baseline are those of the pipeline's.
        monkeypatch.setattr(SwiftJob, "others", ())
    # The kill of this seed is due after a quarter of the training.
    words = ["run", "swift", "--job", job, "--hosts", "2", "--width", "64", "--steps", "80", "--kills", "1"]
    words += ["--seed", "8", "--link", "10gbit"]
    more = ["--against", "checkpoint", "--out", str(tmp_path / "run"), "--json", "-"]
    done = CliRunner().invoke(app, [*words, *more])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"strategy", "kills", "recoveries", "overhead", "goodput", "baseline_goodput"} <= set(found)
    assert found["bit_equal"] is True and found["kills"] == len(found["recoveries"]) == 1
    for one in found["recoveries"]:
        assert {"rank", "detect_s", "regroup_s", "restore_s", "resume_s", "replayed_iterations"} <= set(one)
        assert one["lost_iterations"] == 0 and one["bit_equal"] is True
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "plan.json").exists()
