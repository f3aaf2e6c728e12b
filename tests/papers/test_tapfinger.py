"""Schedulers side by side and with real jobs: what may be asked, queues from measured speeds, and the whole way."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.errors import InputError, LabError
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import RULES, JobProblem
from wirewise.sim.jobs import draw_queue
from wirewise_papers.tapfinger.experiment import Speeds, completions, real_queue, run
from wirewise_papers.tapfinger.job import REAL_KINDS, TapFingerJob

SPEEDS = Speeds(
    {
        kind: {
            (c, g): 0.5 / g + 0.02 * g / c for c in (1, 2, 4) for g in (1, 2, 4) if not ranks or g in ranks
        }
        for kind, (_, ranks) in REAL_KINDS.items()
    },
    start_s=0.3,
    stop_s=0.2,
)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"planner": "hope"}, "planner is 'hope'; expected one of: heft"),
        ({"gpus": 1}, "gpus is 1; expected at least 2"),
        ({"processor": 0.0}, "processor is 0.0; expected a number from 0.02 to 4"),
        ({"fault": "kill:2@5s"}, "fault 'kill:2@5s' names host 2; expected 0 to 1"),
        ({"fault": "kill:1@bucket:3"}, "expected a fault of a host at a time"),
        ({"kinds": ()}, "kinds is .*; expected at least one, each once"),
        (
            {"kinds": ("hope",)},
            "got the kind 'hope'; expected text, pipeline, graph, or NAME=FILE.py:FUNCTION",
        ),
        ({"kinds": ("text=jobs.py:train",)}, "with another name"),
        ({"kinds": ("mine=absent.py:train",)}, "cannot read absent.py of the kind 'mine': .*No such file"),
        (
            {"kinds": (f"mine={__file__}:train",)},
            "has no function 'train'; expected one that takes the folder",
        ),
    ],
)
def test_a_run_that_cannot_be_carried_out_is_refused(settings, told):
    with pytest.raises(InputError, match=told):
        TapFingerJob(**settings)


def test_a_fault_needs_a_lab(tmp_path):
    said = []
    with pytest.raises(LabError, match="got fault 'kill:1@5s' without a lab"):
        run(TapFingerJob(fault="kill:1@5s", network="loopback"), tmp_path, said.append)
    assert not said


def test_all_schedulers_get_the_same_queues_done():
    pairs = [
        tuple(JobProblem(draw_queue(((4, 4), (4, 4)), 1.0, jobs=8, seed=seed + more)) for more in (100, 0))
        for seed in range(2)
    ]
    found = completions(pairs)
    assert set(found) == {*RULES, "tapfinger"}
    assert all(len(one) == 2 and all((taken > 0).all() for taken in one) for one in found.values())


def test_a_queue_of_real_jobs_is_as_fast_as_was_measured():
    job = TapFingerJob(real_jobs=9, seed=2)
    queue = real_queue(job, SPEEDS)
    assert len(queue.queue) == 9 and len(queue.clusters) == 2 and queue.slot_s == 2.0
    text, pipeline = queue.kinds["text"], queue.kinds["pipeline"]
    # An ordinary job with the least takes its size and a start.
    assert 2.0 / text.progress[1][1] == pytest.approx(job.size_s + 0.3, rel=0.02)
    # Two stages have a use for 2 and 4 accelerators; a third is of none.
    assert pipeline.gpus == 2 and pipeline.progress[2][3] == pipeline.progress[2][2] < pipeline.progress[2][4]
    assert pipeline.progress[4][1] == 0.0 and np.isfinite(text.progress).all()
    plan = PLANNERS["jobs"]["heft"](queue)
    assert {one.job for one in plan.allotments} == {one.name for one in queue.queue}


def test_a_function_of_ones_own_is_a_kind_of_job(tmp_path):
    (tmp_path / "mine.py").write_text("def train(folder):\n    pass\n")
    job = TapFingerJob(kinds=("text", f"mine={tmp_path}/mine.py:train"))
    assert job.real_kinds["mine"] == (f"{tmp_path.resolve()}/mine.py:train", ())
    speeds = SPEEDS._replace(steps_s={"text": SPEEDS.steps_s["text"], "mine": SPEEDS.steps_s["graph"]})
    assert set(real_queue(job, speeds).kinds) == {"text", "mine"}
    with pytest.raises(InputError, match="kinds are named mine, mine; expected each name once"):
        TapFingerJob(kinds=(job.kinds[1], f"mine={tmp_path}/./mine.py:train"))


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_jobs_run_in_a_lab_as_a_scheduler_decides(tmp_path):
    words = ["run", "tapfinger", "--seeds", "2", "--jobs", "10", "--planner", "optimus", "--real-jobs", "3"]
    more = [
        "--size-s",
        "3",
        "--accelerator-s",
        "0.1",
        "--processor",
        "0.5",
        "--cpus",
        "2",
        "--gpus",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, [*words, *more, "--json", "-"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"schedulers", "seeds", "real"} <= set(found) and found["seeds"] == 2
    assert set(found["schedulers"]) == {*RULES, "tapfinger"}
    for one in found["schedulers"].values():
        assert {"mean_jct", "ci95", "makespan", "p99"} <= set(one) and one["mean_jct"] <= one["p99"] <= one[
            "makespan"
        ]
    real = found["real"]
    assert real["predicted_jct_s"] > 0 and real["measured_jct_s"] > 0
    for job in real["executed"]["jobs"]:
        assert not job["words"] and not job["failures"] and job["ended_s"] > job["shares"][0]["start_s"] >= 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Lengths of the queue" in page and "The real jobs" in page
    assert (tmp_path / "run" / "plan-optimus.json").exists()
