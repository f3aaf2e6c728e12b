"""`wirewise plan jobs`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.planners import PLANNERS
from wirewise.plans import load
from wirewise.sim import predict
from wirewise.trace import read_queue


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_queue_is_planned_compared_checked_and_shown(tmp_path):
    plan, queue, page = tmp_path / "plan.json", tmp_path / "queue.json", tmp_path / "page.html"
    result = call("plan", "jobs", "even", "--out", plan, "--job-out", queue, "--json", "-")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["simulated"]
    assert (
        set(found) == set(PLANNERS["jobs"])
        and found["heft"]["mean_completion_s"] < found["min"]["mean_completion_s"]
    )
    assert all(
        one["mean_completion_s"] <= one["p99_completion_s"] <= one["makespan_s"] for one in found.values()
    )
    assert predict(load(plan), read_queue(queue)).step_s == found["heft"]["makespan_s"]
    again = call("plan", "jobs", queue, "--with", "srpt", "--no-compare")
    assert again.exit_code == 0 and "simulated under srpt." in again.stdout
    assert call("check", plan, "--job", queue).exit_code == 0
    assert call("show", plan, "--html", page).exit_code == 0
    assert page.read_text().count('class="bar c') == 192


def test_what_cannot_be_used_is_named(tmp_path):
    assert (
        "no such file; expected one, or a queue to draw: even, uneven" in call("plan", "jobs", "odd").output
    )
    assert "unknown jobs planner 'best'" in call("plan", "jobs", "even", "--with", "best").output
    other = tmp_path / "other.json"
    assert (
        call(
            "plan", "jobs", "uneven", "--no-compare", "--job-out", other, "--out", tmp_path / "p.json"
        ).exit_code
        == 0
    )
    assert call("plan", "jobs", "even", "--no-compare", "--out", tmp_path / "q.json").exit_code == 0
    told = call("check", tmp_path / "q.json", "--job", other)
    assert told.exit_code == 1 and "world size 3" in told.output
