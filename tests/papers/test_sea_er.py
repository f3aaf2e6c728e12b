"""Rehearsal on growing graphs: what a job may ask for, the command from end to end, and several workers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.runtime.incremental import METHODS, Settings
from wirewise_papers.sea_er.experiment import DEFAULT_METHODS, IncrementalJob, run

GRAPH = "block:nodes=600,classes=6,features=12,noise=1.0,mean_degree=8"
QUICK = ["--dataset", GRAPH, "--epochs", "8", "--hidden", "8", "--learning-rate", "0.02", "--budget", "3"]
SETTINGS = Settings(epochs=8, hidden=8, learning_rate=0.02, budget=3)


def test_default_methods_are_known():
    assert set(DEFAULT_METHODS) <= set(METHODS)


def test_one_json_object_and_a_page_come_out(tmp_path):
    found = CliRunner().invoke(app, ["run", "sea-er", *QUICK, "--out", str(tmp_path / "run"), "--json", "-"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert "task 3 of 3, AP in %: bare" in found.stderr
    assert list(result["methods"]) == list(DEFAULT_METHODS)
    for record in result["methods"].values():
        accuracy = [row + [np.nan] * (3 - len(row)) for row in record["accuracy"]]
        assert record["ap"] == pytest.approx(np.mean(accuracy[-1]))
        assert record["af"] == pytest.approx(np.mean([accuracy[2][k] - accuracy[k][k] for k in (0, 1)]))
        assert record["ap_by_task"][-1] == record["ap"] and record["ap_by_task"][0] == accuracy[0][0]
    assert result["methods"]["joint"]["ap"] > result["methods"]["bare"]["ap"] - 0.02
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert "coverage" in (tmp_path / "run" / "report.html").read_text()


def test_a_table_is_printed(tmp_path):
    words = ["--methods", "bare,sea-er", "--setting", "class", "--tasks", "2", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, ["run", "sea-er", *QUICK, *words])
    assert found.exit_code == 0, found.output
    assert "task 2 of 2" in found.stdout and "sea-er" in found.stdout
    assert f"Report: {tmp_path / 'report.html'}" in found.stdout


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--budget", "0"], "--budget is 0; expected at least 1"),
        (["--methods", "bare,sear"], "--methods is 'bare,sear'; expected some of: bare, er-random"),
        (["--methods", ","], "--methods is ','; expected some of: bare"),
        (["--methods", "bare,bare"], "--methods is 'bare,bare'; expected some of: bare, "),
        (["--setting", "domain"], "--setting is 'domain'; expected one of: task, class"),
        (["--growth", "shrinking"], "--growth is 'shrinking'; expected one of: inductive"),
        (["--mixing", "most"], "--mixing is 'most'; expected one of: sum, mean"),
        (["--decay", "l1"], "--decay is 'l1'; expected one of: decoupled, l2"),
        (["--kernel", "cubic"], "--kernel is 'cubic'; expected one of: linear, rbf"),
        (["--most-weight", "0.5"], "--most-weight is 0.5; expected a finite number of at least 1"),
        (["--epochs", "0"], "--epochs is 0; expected at least 1"),
        (["--classes-per-task", "1"], "--classes-per-task is 1; expected at least 2"),
        (["--smallest-class", "5000"], "has 0 of 6 classes with at least 5000 nodes"),
        (["--classes-per-task", "4"], "enough for 1 tasks of 4; expected at least 2 tasks"),
        (["--workers", "0"], "--workers is 0; expected at least 1"),
        (["--timeout", "nan"], "--timeout is nan; expected a finite number above 0"),
        (["--workers", "2", "--methods", "gem"], "method 'gem' learns on one worker"),
        (["--dataset", "absent.npz"], "absent.npz"),
    ],
)
@pytest.mark.sample(6)
def test_what_cannot_be_used_is_named(words, told, tmp_path):
    found = CliRunner().invoke(app, ["run", "sea-er", *QUICK, "--out", str(tmp_path / "run"), *words])
    assert found.exit_code != 0
    error = str(found.exception) if found.exception and told in str(found.exception) else found.output
    assert told in " ".join(error.split())


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_share_the_nodes_and_find_the_same(tmp_path):
    job = IncrementalJob(dataset=GRAPH, methods=("bare", "sea-er", "joint"), settings=SETTINGS)
    said: list[str] = []
    one = run(job, tmp_path, said.append)
    two = run(
        IncrementalJob(dataset=GRAPH, methods=job.methods, settings=SETTINGS, workers=2),
        tmp_path,
        said.append,
    )
    for name in ("bare", "joint"):
        assert two.methods[name].ap == pytest.approx(one.methods[name].ap, abs=0.03)
    assert two.methods["sea-er"].ap > one.methods["bare"].ap - 0.05
    assert two.workers == 2 and sum("task 3 of 3" in line for line in said) == 2


def test_a_job_refuses_unknown_methods():
    with pytest.raises(InputError, match=r"methods is .*'replay'.*; expected some of: bare, "):
        IncrementalJob(methods=("replay",))
