from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.planners.pipeline.problems import random_trace
from tests.planners.recovery.problems import job
from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.planners import PLANNERS
from wirewise.plans import RecoveryPlan, load
from wirewise.topology import lab_hosts
from wirewise.topology import load as load_topology
from wirewise.topology import save as save_topology
from wirewise.trace import read_recovery_trace, write_recovery_trace, write_stage_trace


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def files(tmp_path):
    """Figures of a job, a topology of four hosts, and where the plan goes."""
    write_recovery_trace(
        job([0.09, 0.05, 0.07], [1e6, 2e6], ranks=[(0,), (1, 2), (3,)]), tmp_path / "job.json"
    )
    save_topology(lab_hosts(["10gbit"] * 4), tmp_path / "four.toml")
    return tmp_path / "job.json", tmp_path / "four.toml", tmp_path / "plan.json"


def test_a_plan_is_what_its_planner_makes(files):
    figures, four, out = files
    words = ("--mtbf", 60, "--log-budget", "1GB", "--disk-price", 0.5, "--spares", 2, "--helpers", 1)
    done = call(
        "plan",
        "recovery",
        figures,
        "--topology",
        four,
        *words,
        "-o",
        out,
        "--json",
        out.with_suffix(".found"),
    )
    assert done.exit_code == 0, done.output
    plan = load(out)
    assert plan == PLANNERS["recovery"]["swift"](
        read_recovery_trace(figures),
        Links.of(load_topology(four)),
        mtbf_s=60.0,
        log_bytes=1e9,
        disk_price=0.5,
        spares=2,
        helpers=1,
    )
    assert (
        "At a failure every 60.0 s, " in done.stdout
        and "this plan\t" in done.stdout
        and "Note: " in done.stdout
    )
    found = json.loads(out.with_suffix(".found").read_text())
    assert found["strategies"] == ["log", "replica", "log"] and found["goodput"] == plan.goodput
    assert [one["name"] for one in found["policies"]] == ["checkpoint", "checkfreq", "gemini"]
    assert RecoveryPlan.from_json(json.dumps(found["plan"])) == plan
    told = call("sim", figures, "--plan", out, "--topology", four)
    assert told.exit_code == 0 and "work between failures of 4 ranks" in told.stdout, told.output


def test_modules_are_planned_with_their_pipeline(files, tmp_path):
    _, four, out = files
    write_stage_trace(random_trace(3, 8), tmp_path / "modules.json")
    cut = tmp_path / "cut.json"
    call(
        "plan",
        "pipeline",
        tmp_path / "modules.json",
        "--topology",
        four,
        "--stages",
        4,
        "--with",
        "1f1b",
        "-o",
        cut,
    )
    words = ("--topology", four, "--pipeline", cut, "--interval", 30, "--mtbf", 1e5)
    done = call("plan", "recovery", tmp_path / "modules.json", *words, "-o", out)
    assert done.exit_code == 0, done.output
    plan = load(out)
    assert [stage.ranks for stage in plan.stages] == [(0,), (1,), (2,), (3,)] and plan.interval_steps == 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--strategy", "replica"), "stage 0 on ranks [0] has no replica on another host"),
        (("--mtbf", 0), "--mtbf is 0.0; expected a finite number above 0"),
        (("--consistency", "hope"), "--consistency is 'hope'; expected one of: auto, roll-forward"),
        (("--pipeline", "cut.json"), "--pipeline belongs to modules"),
        (("--silence-limit", 0.1), "expected at least two heartbeats"),
        (("--with", "other"), "unknown recovery planner 'other'; expected one of: swift"),
    ],
)
def test_what_cannot_be_planned_is_named(files, words, said):
    figures, four, _ = files
    done = call("plan", "recovery", figures, "--topology", four, *words)
    assert done.exit_code == 2 and said in done.stderr.replace("\n", " "), done.stderr


def test_other_jobs_are_refused(files, tmp_path):
    (tmp_path / "tasks.json").write_text(
        '{"iterations": 1, "tasks": [{"name": "w", "kind": "worker"}], "flows": []}'
    )
    done = call("plan", "recovery", tmp_path / "tasks.json", "--topology", files[1])
    assert done.exit_code == 2 and "is a TaskSet; expected figures of a recovery" in done.stderr
