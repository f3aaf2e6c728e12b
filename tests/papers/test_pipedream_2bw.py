"""Pipelines next to each other: what a job may ask for, what is made of the times, and the whole way in a lab."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.errors import InputError, PlanError
from wirewise.plans import load
from wirewise_papers.interleaved import Measurements
from wirewise_papers.pipedream_2bw.experiment import PipeDream2BW, plans_of
from wirewise_papers.pipedream_2bw.job import MODES, PipelineJob, plan_of, rate_factor
from wirewise_papers.pipedream_2bw.page import pipeline_comparison
from wirewise_papers.pipedream_2bw.records import PipelineMeasures
from wirewise_papers.pipedream_2bw.training import SavedBytes
from wirewise_papers.text_model import CHARACTERS, batches, language_model, loss, text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"stages": 3}, "stages x replicas = hosts"),
        ({"replicas": 3}, "stages x replicas = hosts"),
        ({"blocks": 3}, "3 blocks cannot be cut into 4 stages"),
        ({"width": 10}, "expected a multiple of 4"),
        ({"updates": 8}, "expected at least 3 in a turn"),
        ({"modes": ("fast",)}, "expected some of: flush, 1f1b"),
    ],
)
def test_a_job_that_cannot_be_carried_out_is_refused(settings, told):
    with pytest.raises(InputError, match=told):
        PipelineJob(**settings)


def test_two_versions_with_too_few_microbatches_are_refused():
    with pytest.raises(PlanError, match="3 microbatches for 4 positions"):
        PipelineJob(microbatches=3)
    assert PipelineJob(microbatches=3, modes=("flush", "eager")).stages == 4


def test_plans_share_the_blocks_out():
    job = PipelineJob(hosts=4, replicas=2, blocks=5)
    for mode in MODES:
        plan = plan_of(job, mode)
        assert [len(stage.modules) for stage in plan.stages] == [3, 4]
        assert plan.replicas == 2
    assert plan_of(job, "2bw").exchange == "hidden" and plan_of(job, "2bw-blocking").exchange == "end"


def test_rates_rise_and_fall_to_zero():
    job = PipelineJob(updates=20, turns=2, warmup=0.2)
    found = [rate_factor(job, update) for update in range(21)]
    assert found[:6] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 15 / 16]) and found[20] == 0.0
    assert rate_factor(PipelineJob(warmup=0.0), 0) == 1.0


def test_the_model_is_of_a_million_parameters_and_learns_from_the_sources():
    job = PipelineJob()
    layers = language_model(job)
    assert sum(p.numel() for m in layers.modules.values() for p in m.parameters()) == pytest.approx(
        0.92e6, rel=0.01
    )
    assert int(text().max()) < CHARACTERS and len(text()) > 250_000
    (x, y), (again, _) = next(batches(job, 0, 3, 1)), list(batches(job, 0, 2, 2))[1]
    assert torch.equal(x, again) and torch.equal(x[:, 1:], y[:, :-1])
    assert not torch.equal(x, next(batches(job, 0, 4, 1))[0])
    values = x
    for module in layers.modules.values():
        values = module(values)
    assert float(loss(values, y).detach()) == pytest.approx(4.9, abs=0.5)


def test_saved_bytes_are_those_between_the_passes():
    saved, weight = SavedBytes(), torch.nn.Parameter(torch.ones(8, 8))
    with saved.watch():
        found = torch.tanh(torch.ones(4, 8) @ weight.t()).sum()
    # The input and the output of tanh are kept; a parameter is there anyway.
    assert saved.now == saved.most == 2 * 4 * 8 * 4
    found.backward()
    del found
    assert saved.now == 0


def _measured(step_s: float, losses: list[float]) -> Measurements:
    ends = [step_s * (n + 1) for n in range(len(losses))]
    own = PipelineMeasures(bubble=0.2, peak_bytes=1000, passes=[])
    return Measurements(steps_s=[step_s] * 5, ends_s=ends, losses=losses, outcome=msgspec.to_builtins(own))


def test_modes_are_compared_with_the_first():
    job = PipelineJob(modes=("flush", "2bw"))
    losses = [4.0] * 5 + [2.0] * 7
    experiment = PipeDream2BW()
    found = experiment.summarise(job, {"flush": _measured(0.4, losses), "2bw": _measured(0.2, losses)})
    assert found.speedup_step == pytest.approx(2.0) and found.fastest == "2bw"
    assert found.modes["flush"].time_to_reference_loss_s == pytest.approx(0.4 * 10)
    assert found.modes["2bw"].time_to_reference_loss_s == pytest.approx(0.2 * 10)
    page = experiment.page(job, found)
    assert "2bw is the fastest of 2 modes" in pipeline_comparison(found).sentence and "Timetable: 2bw" in page


def test_predictions_know_that_two_versions_do_not_empty_the_pipeline():
    job = PipelineJob(link="10gbit")
    flush, streams = (plans_of(job)[mode].predicted_s for mode in ("flush", "2bw"))
    assert flush == pytest.approx(7 * 0.045, rel=0.02) and streams == pytest.approx(4 * 0.045, rel=0.02)


@pytest.mark.lab
def test_modes_train_next_to_each_other_in_a_lab(tmp_path):
    words = [
        "run", "pipedream-2bw", "--hosts", "2", "--blocks", "2", "--width", "16", "--modes", "1f1b,2bw",
        "--updates", "8", "--turns", "2", "--forward-ms", "2", "--backward-ms", "4",
        "--out", str(tmp_path / "run"), "--json", "-",
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["modes"]) == {"1f1b", "2bw"} and found["speedup_step"] > 0
    for one in found["modes"].values():
        assert {
            "step_s",
            "predicted_step_s",
            "bubble",
            "peak_bytes",
            "final_loss",
            "time_to_reference_loss_s",
        } <= set(one)
        assert one["final_loss"] < 5.5 and one["peak_bytes"] > 0
    assert load(tmp_path / "run" / "plan-2bw.json").weight_versions == 2
    assert msgspec.json.decode((tmp_path / "run" / "result.json").read_bytes()) == found
    assert "Timetable" in (tmp_path / "run" / "report.html").read_text()
