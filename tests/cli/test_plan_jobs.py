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


LOG = "job_id,gpu_num,cpu_num,submit_time,duration\n" + "".join(
    f"{n},{1 + n % 3},4,2020-04-01 00:{n:02}:00,{60 * (1 + n * 7 % 11)}\n" for n in range(20)
)


def test_a_log_is_planned_for_clusters_and_an_oracle_knows_paces(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    words = ["plan", "jobs", log, "--log", "helios", "--clusters", "1x4,1x3", "--no-compare", "--json", "-"]
    means = []
    for more in ([], ["--oracle"]):
        told = call(*words, "--with", "srpt", *more)
        assert told.exit_code == 0, told.output
        means.append(json.loads(told.stdout)["simulated"]["srpt"]["mean_completion_s"])
    assert means[1] < means[0]
    fewer = json.loads(call(*words, "--jobs", "5").stdout)
    assert {one["job"] for one in fewer["plan"]["allotments"]} == set("01234")


def test_a_queue_of_measured_kinds_is_drawn(tmp_path):
    speeds, queue = tmp_path / "speeds.csv", tmp_path / "queue.json"
    speeds.write_text("lm,1,1,46\nlm,2,1,26\nmnist,1,1,20\nmnist,2,1,16\n")
    words = ["plan", "jobs", "even", "--speeds", speeds, "--slot", "5", "--no-compare", "--job-out", queue]
    assert call(*words).exit_code == 0
    found = read_queue(queue)
    assert found.slot_s == 5.0 and found.kinds["lm"].progress[2][1] == 5 / 40


def test_options_without_use_are_refused(tmp_path):
    for words, told in (
        (["even", "--log", "helios"], "got --log without --clusters"),
        (["even", "--log", "helios", "--clusters", "4by4"], "got a cluster '4by4'"),
        (["even", "--clusters", "4x4"], "got --clusters without --log"),
        (["even", "--jobs", "3"], "got --jobs without --log"),
        (["even", "--slot", "3"], "got --slot without --log"),
        (["x", "--log", "pai", "--clusters", "4x4", "--speeds", "y"], "got --speeds beside --log"),
        (["queue.json", "--speeds", "y"], "got --speeds for queue.json"),
        (["even", "--several"], "planner 'heft' has no use for several"),
    ):
        found = call("plan", "jobs", *words)
        assert found.exit_code == 2 and told in " ".join(found.output.split()), found.output
