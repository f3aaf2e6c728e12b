import json

from typer.testing import CliRunner

from wirewise.cli import doctor
from wirewise.cli.main import app


def call(*words):
    return CliRunner().invoke(app, ["doctor", *words])


def test_this_machine_is_healthy():
    result = call("--json", "-")
    record = json.loads(result.stdout)
    states = {check["name"]: check["state"] for check in record["checks"]}
    assert result.exit_code == 0 and record["ok"], record
    assert states["self-test"] == states["metis"] == states["highs"] == "ok"
    assert {"lab", "cuda", "triton", "data", "kernels"} <= set(states)


def test_it_says_that_paths_for_gpus_were_not_run():
    told = {check.name: check.found for check in doctor.checks()}
    assert "between several GPUs were not yet run" in told["cuda"]


def test_what_is_missing_has_advice():
    assert all(check.advice for check in doctor.checks() if check.state != "ok")


def test_a_broken_part_is_told_and_ends_with_1(monkeypatch):
    def broken():
        raise ImportError("no METIS here")

    monkeypatch.setattr(doctor, "_metis", broken)
    result = call()
    lines = {line.split("\t")[0]: line for line in result.stdout.splitlines()}
    assert result.exit_code == 1
    assert "broken" in lines["metis"] and "no METIS here" in lines["metis"]
    assert "\tok\t" in lines["self-test"]


def test_what_is_optional_does_not_end_with_1(monkeypatch):
    monkeypatch.setattr(doctor, "_lab", lambda: 1 / 0)
    found = {check.name: check.state for check in doctor.checks()}
    assert found["lab"] == "missing"
    assert "broken" not in found.values()
