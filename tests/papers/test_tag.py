"""Deployment plans next to each other: what a job may ask for, what is made of times, and the whole way in a lab."""

from __future__ import annotations

import json
from functools import cache

import msgspec
import pytest
from typer.testing import CliRunner

from tests.harness.tiers import keep
from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.plans import load
from wirewise_papers.interleaved import Measurements
from wirewise_papers.tag import planning as tag
from wirewise_papers.tag.job import SIZES, DeploymentJob, TagOptions
from wirewise_papers.tag.models import example_of, layers_of, measured_trace, trace_of
from wirewise_papers.tag.page import deployment_comparison, deployment_html
from wirewise_papers.tag.records import TrainingFacts
from wirewise_papers.tag.training import EmulatedTimes, losses_of_one


@cache
def _job() -> DeploymentJob:
    return tag.make_job(TagOptions(plans=("ddp", "ddp-proportional", "heterog"), model="mlp"))


def test_what_cannot_be_carried_out_is_refused():
    with pytest.raises(InputError, match="a batch of 3 rows has none for some of 4 hosts"):
        TagOptions(batch=3)
    with pytest.raises(InputError, match="got 2 links for 4 speeds; expected one for each host"):
        TagOptions(links=("1gbit", "1gbit"))
    assert TagOptions().rates == ("200mbit", "200mbit", "100mbit", "50mbit")
    assert TagOptions(speeds=(1.0, 0.5), links=("1gbit",)).rates == ("1gbit", "1gbit")
    with pytest.raises(InputError, match="plans has 'fast'; expected some of: ddp, ddp-proportional, tag"):
        tag.make_job(TagOptions(plans=("fast",), model="mlp"))
    with pytest.raises(
        InputError, match=r"got speeds of at most 0\.5 under real computing; expected the fastest"
    ):
        TagOptions(speeds=(0.5, 0.25), computing="real")
    job = _job()
    with pytest.raises(InputError, match="plan 'ddp' is for 4 ranks and 32 rows; expected 4 ranks"):
        msgspec.structs.replace(job, batch=16)


@pytest.mark.parametrize("model", keep(["cnn"], SIZES))
def test_models_are_cut_into_modules_that_take_the_seconds_of_the_job(model):
    wish = TagOptions(model=model, batch=4, speeds=(1.0, 0.5), compute_ms=60.0)
    trace = trace_of(wish)
    assert sum(m.forward_s[0] + m.backward_s[0] for m in trace.modules) == pytest.approx(0.06)
    example = example_of(wish)
    layers = layers_of(wish, example.model)
    values = dict(zip(layers.inputs, example.inputs, strict=True))
    for module, (name, one) in zip(trace.modules, layers.modules.items(), strict=True):
        values[name] = one(*(values[source] for source in layers.sources[name]))
        # The last module gives the loss; the others one row for each of the batch.
        assert module.name == name and (name == layers.output or len(values[name]) == 4)
        assert module.output_bytes == (0.0 if name == layers.output else values[name].nbytes / 4)
    assert values[layers.output] == example.model(*example.inputs)


def test_rows_and_buckets_are_those_of_data_parallelism():
    job = _job()
    even, shares = job.plans["ddp"], job.plans["ddp-proportional"]
    assert even.groups[0].rows == (8, 8, 8, 8) and shares.groups[0].rows == (12, 12, 6, 2)
    # Layers of a megabyte: the first bucket is full with one, the other holds the rest.
    assert [len(group.ops) for group in even.groups] == [3, 1]


def test_passes_take_as_long_as_on_the_device():
    job = _job()
    trace, plan = trace_of(job), job.plans["ddp-proportional"]
    name = trace.modules[0].name
    fast, slow = EmulatedTimes(trace, plan, 0), EmulatedTimes(trace, plan, 3)
    assert slow.seconds(name, "forward", 2) == pytest.approx(4 * fast.seconds(name, "forward", 2))
    assert fast.seconds(name, "backward", 4) == pytest.approx(trace.modules[0].backward_s[0] / 8)
    only = msgspec.structs.replace(
        plan.groups[0], communication="duplicate", duplicated=(name,), ops=plan.groups[0].ops
    )
    factors = EmulatedTimes(trace, msgspec.structs.replace(plan, groups=(only, *plan.groups[1:])), 0)
    assert factors.seconds(name, "backward", 4) == pytest.approx(trace.modules[0].backward_s[0] / 16)
    assert factors.seconds(name, "product", 32) == pytest.approx(trace.modules[0].backward_s[0] / 2)


def test_plans_are_compared_with_the_first():
    job = _job()
    times = {
        name: Measurements(
            steps_s=[s, s, 9.0],
            bytes_sent=10,
            outcome=msgspec.to_builtins(TrainingFacts(loss_error=error, message_s=1e-3)),
        )
        for name, s, error in (("ddp", 2.0, 1e-7), ("ddp-proportional", 1.0, 1e-6), ("heterog", 0.5, 1e-3))
    }
    found = tag.summarise(job, times)
    assert (found.fastest, found.speedup) == ("heterog", 4.0)
    # Only the last bucket is not hidden: a ring of four hosts, six messages that take a millisecond longer.
    ddp, trace = job.plans["ddp"], trace_of(job)
    at_once = tag.predicted_s(ddp, trace, job.rates, 1e-9)
    assert found.plans["ddp"].predicted_step_s == tag.predicted_s(ddp, trace, job.rates, 1e-3)
    assert found.plans["ddp"].predicted_step_s - at_once == pytest.approx(0.006, rel=1e-3)
    assert [one.loss_equal for one in found.plans.values()] == [True, True, False]
    told = deployment_comparison(found)
    assert (
        "heterog is the fastest of 3 plans" in told.sentence
        and "LOSSES DIFFER under heterog" in told.sentence
    )
    assert "What runs where: heterog" in deployment_html(found, job.plans)


def test_measured_modules_take_their_time_for_shares_of_the_batch():
    wish = TagOptions(model="gpt", batch=4, speeds=(1.0, 0.5), computing="real")
    trace, counted = measured_trace(wish), trace_of(wish)
    assert trace.sizes == (1, 2, 4) and trace.numbers == counted.numbers and trace.flows == counted.flows
    assert all(min(m.forward_s) > 0 for m in trace.modules)
    for name in ("parameter_bytes", "factor_bytes", "factored_bytes"):
        assert [getattr(m, name) for m in trace.modules] == [getattr(m, name) for m in counted.modules]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("computing", ["slept", "real"])
def test_plans_train_next_to_each_other_in_a_lab(tmp_path, computing):
    words = [
        "run", "tag", "--model", "mlp", "--speeds", "1,0.5", "--links", "200mbit,100mbit", "--plans",
        "ddp-proportional,proportional,tag", "--compute-ms", "60", "--computing", computing, "--batch", "12",
        "--steps", "2", "--turns", "1", "--out", str(tmp_path / "run"), "--json", "-",
    ]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["plans"]) == {"ddp-proportional", "proportional", "tag"}
    for one in found["plans"].values():
        assert {"step_s", "predicted_step_s", "bytes_sent", "loss_equal"} <= set(one)
        assert (
            one["loss_equal"] is True
            and one["step_s"] >= 0.02 * (computing == "slept")
            and one["bytes_sent"] > 0
        )
    assert load(tmp_path / "run" / "plan-tag.json").planner == "tag"
    assert "What runs where" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_losses_of_one_process_fall():
    losses = losses_of_one(_job())
    assert len(losses) == 10 and losses[-1] < losses[0]
