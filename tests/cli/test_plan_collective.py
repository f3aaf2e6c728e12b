"""`wirewise plan collective`: what scripts read from it, and what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from wirewise import plans, topology
from wirewise.cli.main import app
from wirewise.cli.plan_collective import parse_collective
from wirewise.errors import InputError


def invoke(*words):
    return CliRunner().invoke(app, ["plan", "collective", *words])


def test_json_has_what_scripts_rely_on(tmp_path):
    file = tmp_path / "plan.json"
    words = (
        "--topology",
        "lab-4@200mbit",
        "--collective",
        "all-gather",
        "--bytes",
        "4MB",
        "--with",
        "greedy",
    )
    done = invoke(*words, "-o", str(file), "--json", "-")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["planner"], record["collective"], record["ranks"]) == ("greedy", "all_gather", 4)
    assert record["size_bytes"] == 4_000_000
    # Each host lets out one block to three others, or takes three in, through 25 MB/s.
    assert record["bound_s"] == pytest.approx(3e6 / 25e6)
    assert record["bound_s"] <= record["predicted_s"] <= 1.1 * record["bound_s"]
    assert record["certificate"]["bandwidth_bytes_per_s"] == 25e6
    assert record["synthesis_s"] > 0 and record["chunks"] % 4 == 0 and record["steps"] > 0
    found = plans.load(file)
    assert found.predicted_s == record["predicted_s"]
    found.check(topology.preset("lab-4@200mbit"))
    shown = CliRunner().invoke(app, ["check", str(file)])
    assert shown.exit_code == 0, shown.output


@pytest.mark.slow
def test_people_read_why_and_what_else(tmp_path):
    done = invoke("--topology", "lab-4", "--collective", "broadcast", "--bytes", "64KB", "--time-limit", "5")
    assert done.exit_code == 0, done.output
    assert "times the least possible" in done.output
    assert "Why not faster" in done.output
    assert "builtin" in done.output


def test_a_plan_that_its_routes_limit_tells_both_bounds(tmp_path):
    """GPUs with an NVSwitch use no PCIe and no network among each other, which the whole network offers."""
    words = ("--topology", "dgx-a100", "--collective", "all_gather", "--bytes", "1GB", "--with", "greedy")
    done = invoke(*words, "--json", "-")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["bound_routes_s"] == pytest.approx(7 / 8 / 300)
    assert record["bound_s"] < 0.95 * record["bound_routes_s"]
    assert set(record["certificate_routes"]) == set(record["certificate"])
    text = invoke(*words).output
    assert "times the least possible" in text and "The routes that programs take leave paths" in text


@pytest.mark.parametrize("text", ["all_reduce", "all-reduce", "AllReduce", "allreduce"])
def test_spellings(text):
    assert parse_collective(text) == "all_reduce"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--collective", "scan"), "unknown collective"),
        (("--bytes", "0"), "above zero"),
        (("--with", "magic"), "unknown collective planner 'magic'; expected one of: auto"),
        (("--members", "0,9"), "ascending ranks from 0 to 3"),
        (("--members", "a"), "--members is 'a'; expected whole numbers by comma"),
        (("--sketch", "s.json", "--with", "forest"), "taccl"),
        (("--ranks", "host0,host9"), "no rank 'host9'"),
    ],
)
def test_what_is_refused(words, said):
    done = invoke("--topology", "lab-4", *words)
    assert done.exit_code != 0
    assert said in done.output


def test_an_unjoined_topology_is_refused(tmp_path):
    (tmp_path / "t.toml").write_text('name = "apart"\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    done = invoke("--topology", str(tmp_path / "t.toml"))
    assert done.exit_code != 0 and "no path leads from 'a' to 'b'" in done.output


def test_an_unknown_collective_names_the_known():
    with pytest.raises(InputError, match="broadcast, reduce"):
        parse_collective("allsum")


def test_a_group_of_one_rank_has_a_plan_that_reads_back(tmp_path):
    file = tmp_path / "plan.json"
    done = invoke("--topology", "lab-4", "--members", "2", "--with", "greedy", "-o", str(file))
    assert done.exit_code == 0, done.output
    assert plans.load(file).certificate.bandwidth_bytes_per_s == 0.0
