"""`wirewise sim`: replay of a run folder, with changes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.trace.synthetic import make
from wirewise.cli.main import app
from wirewise.trace import write_trace


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path):
    write_trace(make(ranks=4, steps=8, sizes=(400_000, 20_000_000, 8_000_000), clock_s=2.0).seen, tmp_path)
    return tmp_path


def test_json_has_the_replay_and_the_change(folder):
    result = call("sim", folder, "--what-if", "bandwidth=*:x2,bucket_mb=5", "--json", "-")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert abs(found["error"]) < 0.05
    assert found["error"] == pytest.approx(found["predicted_step_s"] / found["measured_step_s"] - 1)
    low, high = found["error_ci95"]
    assert low <= found["error"] <= high
    assert (found["ranks"], found["steps"]) == (4, 8)
    parts = found["breakdown"]
    whole = parts["compute_s"] + parts["exposed_communication_s"] + parts["wait_s"]
    assert whole == pytest.approx(found["predicted_step_s"], rel=1e-6)
    assert parts["overlapped_communication_s"] <= parts["compute_s"]
    assert {"name", "kind", "rank", "start_s", "end_s"} == set(found["critical_path"][0])
    assert set(found["baselines"]) == {"daydream", "sum", "max"}
    assert found["baselines"]["max"]["predicted_step_s"] < found["baselines"]["sum"]["predicted_step_s"]
    after = found["what_if"]
    assert after["p50_s"] <= after["p95_s"]
    assert after["predicted_step_s"] < found["predicted_step_s"]
    assert after["breakdown"]["exposed_communication_s"] < parts["exposed_communication_s"]
    # 250e6 bytes/s made the trace.
    assert found["links"]["bandwidth_bytes_per_s"] == pytest.approx([250e6] * 4, rel=0.1)


def test_without_a_change_there_is_none(folder):
    assert json.loads(call("sim", folder, "--json", "-").stdout)["what_if"] is None


def test_the_first_line_says_what_was_found(folder):
    first, _, titles, *_ = call("sim", folder, "--what-if", "no_communication").stdout.splitlines()
    assert first.startswith("A step of 4 ranks takes ")
    assert "with no_communication it would take" in first
    assert titles.split("\t") == ["part of the mean rank's step", "replayed", "with the change"]


def test_the_file_is_written_and_tables_are_printed(folder, tmp_path):
    result = call("sim", folder, "--json", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["steps"] == 8
    assert "op on the critical path" in result.stdout


@pytest.mark.parametrize(
    ("what_if", "said"),
    [
        ("bandwith=x2", "got the change 'bandwith=x2'; expected one of"),
        ("bandwidth=9:x2", "got the host '9'; expected * or 0 to 3"),
        ("bandwidth=x0", "got bandwidth '0'; expected a number above 0"),
        ("straggler=7:x2", "got the straggler 7; the job has ranks 0 to 3"),
        ("scale=layer9:x2", "got the op 'layer9'; the trace has"),
        ("ranks=0", "got ranks '0'"),
        ("codec=zip", "got the codec 'zip'"),
    ],
)
def test_a_bad_change_is_one_message_and_code_2(what_if, said, folder):
    result = call("sim", folder, "--what-if", what_if, "--json", "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_to_replay_is_named(tmp_path):
    result = call("sim", tmp_path / "absent")
    assert result.exit_code == 2
    assert "cannot read the trace" in result.stderr
