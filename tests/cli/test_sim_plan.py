"""`wirewise sim --plan`: jobs of every grain under plans of every family."""

from __future__ import annotations

import json

import pytest
from benchmarks.random_steps import DEVICE, random_step
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.trace.synthetic import make
from wirewise.cli.main import app
from wirewise.planners.fusion.disco import AnalyticCosts
from wirewise.plans import BitWidthPlan, ChannelBits, load, save
from wirewise.sim import predict
from wirewise.topology import lab_hosts, preset
from wirewise.topology import save as save_topology
from wirewise.trace import write_trace

GRAPH = "block:nodes=600,classes=4,features=8"


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def made(*words):
    result = call("plan", *words)
    assert result.exit_code == 0, result.output


def asked(*words):
    result = call("sim", *words, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """Jobs of every grain, and a plan for each."""
    folder = tmp_path_factory.mktemp("sim")
    tensors = [{"name": f"t{i}", "elements": 1000 * (i % 5 + 1) ** 5, "gap_us": 300} for i in range(20)]
    (folder / "gradients.json").write_text(json.dumps({"tensors": tensors}))
    graph = random_step(1, 2)
    priced = AnalyticCosts(graph, DEVICE)
    timed = [replace(one, time_s=priced((i,), (i,))) for i, one in enumerate(graph.operators)]
    replace(graph, operators=tuple(timed)).save(folder / "operators.json")
    sizes = (400_000, 20_000_000, 8_000_000)
    write_trace(make(ranks=4, steps=8, sizes=sizes, clock_s=2.0).seen, folder / "run")
    save_topology(lab_hosts(["400mbit", "50mbit", "400mbit"]), folder / "hosts.toml")
    words = ("--trace", folder / "gradients.json", "--ranks", 8, "--bandwidth", "10gbit", "--codec", "dgc")
    made("fusion", *words, "--ranks-per-host", 4, "--split", "none", "-o", folder / "fusion.json")
    made("fusion", folder / "run", "--with", "ddp", "-o", folder / "recorded.json")
    made("collective", "--topology", "lab-4", "--with", "blink", "-o", folder / "collective.json")
    return folder


def test_gradients_take_what_their_planner_predicted(at):
    words = ("--plan", at / "fusion.json", "--bandwidth", "10gbit", "--ranks-per-host", 4)
    found = asked(at / "gradients.json", *words, "--costs", "v100")
    assert found["step_s"] == pytest.approx(load(at / "fusion.json").predicted_step_s, rel=1e-12)
    assert (found["family"], found["planner"], found["unit"]) == ("fusion", "cupcake", "step")
    assert set(found) == {"family", "planner", "unit", "step_s", "breakdown", "phases_s", "classes", "source"}
    parts = found["breakdown"]
    whole = parts["compute_s"] + parts["exposed_communication_s"] + parts["wait_s"]
    assert whole == pytest.approx(found["step_s"])
    assert found["phases_s"]["communication"] > 0 and found["source"] == "simulated" and found["classes"] == 1


def test_links_of_gradients_may_be_a_topology(at, tmp_path):
    words = ("--ranks", 8, "--bandwidth", "10gbit", "--codec", "dgc", "-o", tmp_path / "plan.json")
    made("fusion", "--trace", at / "gradients.json", *words)
    slow, fast = (
        asked(at / "gradients.json", "--plan", tmp_path / "plan.json", "--topology", f"lab-8@{rate}")
        for rate in ("1gbit", "10gbit")
    )
    assert fast["step_s"] < slow["step_s"]


def test_operators_take_what_their_planner_predicted(at, tmp_path):
    between = ("--bandwidth", "1gbit")
    words = ("--graph", at / "operators.json", "--ranks", 4, *between, "--with", "none+default")
    made("fusion", *words, "-o", tmp_path / "plan.json")
    found = asked(at / "operators.json", "--plan", tmp_path / "plan.json", *between)
    assert found["step_s"] == pytest.approx(load(tmp_path / "plan.json").predicted_step_s, rel=1e-9)


def test_a_recorded_run_has_links_of_its_own(at):
    found = asked(at / "run", "--plan", at / "recorded.json")
    assert found["step_s"] == pytest.approx(load(at / "recorded.json").predicted_step_s, rel=1e-9)
    faster = asked(at / "run", "--plan", at / "recorded.json", "--topology", "lab-4@40gbit")
    assert faster["step_s"] < found["step_s"]


def test_stragglers_are_drawn(at):
    plain = asked(at / "run", "--plan", at / "recorded.json")
    words = ("--stragglers", "exp:0.2", "--samples", 12, "--seed", 4)
    found = asked(at / "run", "--plan", at / "recorded.json", *words)
    drawn = found.pop("sampled")
    assert found == plain and (drawn["samples"], drawn["seed"]) == (12, 4)
    assert plain["step_s"] < drawn["median_s"] <= drawn["p95_s"]
    assert drawn["mean_ci95_s"][0] < drawn["mean_s"] < drawn["mean_ci95_s"][1]
    said = call("sim", at / "run", "--plan", at / "recorded.json", *words).stdout
    assert "In 12 samples the mean is" in said


def test_a_collective_needs_no_job(at):
    words = ("--plan", at / "collective.json", "--topology", "lab-4")
    found = asked(*words)
    plan = load(at / "collective.json")
    assert found["step_s"] == pytest.approx(plan.predicted_s, rel=1e-9) and found["unit"] == "all_reduce"
    assert call("sim", *words).stdout == predict(plan, None, preset("lab-4")).summary() + "\n"


def test_a_machine_alone_carries_collectives(tmp_path):
    made("collective", "--topology", "dgx-1v", "--with", "blink", "-o", tmp_path / "plan.json")
    found = asked("--plan", tmp_path / "plan.json", "--topology", "dgx-1v")
    assert found["step_s"] == pytest.approx(load(tmp_path / "plan.json").predicted_s, rel=1e-9)


def test_tasks_take_what_their_planner_predicted(at, tmp_path):
    words = ("--topology", at / "hosts.toml", "--dataset", GRAPH, "--fanouts", "5,3", "--steps", 20)
    made("placement", *words, "-o", tmp_path / "plan.json", "--job-out", tmp_path / "tasks.json")
    found = asked(tmp_path / "tasks.json", "--plan", tmp_path / "plan.json", "--topology", at / "hosts.toml")
    assert found["step_s"] == pytest.approx(load(tmp_path / "plan.json").predicted_s, rel=1e-12)
    result = call("sim", tmp_path / "tasks.json", "--plan", tmp_path / "plan.json", "--topology", "h4")
    assert result.exit_code == 2 and "is for 3 hosts, there are 4" in result.stderr


def test_a_page_is_written(at, tmp_path):
    words = (
        "sim",
        at / "gradients.json",
        "--plan",
        at / "fusion.json",
        "--bandwidth",
        "10gbit",
        "--ranks-per-host",
        4,
    )
    result = call(*words, "--html", tmp_path / "page.html")
    assert result.stdout.splitlines()[-1] == f"Page: {tmp_path / 'page.html'}"
    assert "Step on 8 ranks" in (tmp_path / "page.html").read_text("utf-8")
    result = call(*words, "--html", tmp_path / "no" / "page.html")
    assert result.exit_code == 2 and "Traceback" not in result.stderr


def test_bit_widths_need_no_job(tmp_path):
    channel = ChannelBits(exchange="forward1", sender=0, receiver=1, width=1000, bits=bytes([4] * 1000))
    save(BitWidthPlan(world_size=2, planner="test", channels=(channel,)), tmp_path / "plan.json")
    slow, fast = (
        asked("--plan", tmp_path / "plan.json", "--topology", f"lab-2@{rate}") for rate in ("1gbit", "2gbit")
    )
    assert slow["phases_s"]["wire"] > fast["phases_s"]["wire"] > 0 and slow["unit"] == "epoch"


def test_cached_rows_have_bytes(tmp_path):
    words = ("--dataset", GRAPH, "--workers", 2, "--fanouts", "5,3", "-o", tmp_path / "plan.json")
    made("cache", *words)
    links = ("--plan", tmp_path / "plan.json", "--topology", "lab-2@1gbit")
    narrow, wide = (asked(*links, "--row-bytes", size)["phases_s"] for size in (32, 3200))
    assert wide["rows"] > narrow["rows"] and wide["ids"] == narrow["ids"]
    result = call("sim", *links)
    assert result.exit_code == 2 and "expected --row-bytes N" in result.stderr


REFUSED = {
    "what-if": ("gradients.json --plan fusion.json --what-if ranks=2", "--what-if changes a replayed trace"),
    "no plan": ("run --topology lab-4", "--topology belongs to --plan FILE, and none is given"),
    "page": ("run --html page.html", "--html belongs to --plan FILE, and none is given"),
    "nothing": ("", "nothing to simulate; give a run folder"),
    "no job": ("--plan fusion.json", "a fusion plan is made for a job; expected a run folder"),
    "job of a collective": (
        "run --plan collective.json --topology lab-4",
        "a collective plan, which needs none",
    ),
    "other grain": ("tasks.json --plan fusion.json", 'is JSON with "tasks", a job that a fusion plan is not'),
    "no links": ("--plan collective.json", "expected --topology, a preset or a file"),
    "option of others": (
        "gradients.json --plan fusion.json --row-bytes 4",
        '--row-bytes says nothing about a fusion plan and JSON with "tensors"; expected only --topology, --bandwidth',
    ),
    "rate of a trace": (
        "run --plan recorded.json --bandwidth 1gbit",
        "--bandwidth says nothing about a fusion plan and a run folder or files of a trace",
    ),
    "costs of a collective": (
        "--plan collective.json --topology lab-4 --costs v100",
        "--costs says nothing about",
    ),
    "two kinds of links": (
        "gradients.json --plan fusion.json --topology lab-8 --bandwidth 1gbit",
        "--bandwidth takes the place of --topology",
    ),
    "ranks without a rate": (
        "gradients.json --plan fusion.json --ranks-per-host 4",
        "expected --bandwidth with it",
    ),
    "no costs of collectives": ("gradients.json --plan fusion.json", "bucket 0"),
    "other ranks": (
        "gradients.json --plan fusion.json --topology lab-4",
        "world size 8, the links have 4 ranks",
    ),
    "other ranks than recorded": (
        "run --plan recorded.json --topology lab-8",
        "world size 4, the links have 8 ranks",
    ),
    "other hosts than recorded": (
        "run --plan recorded.json --topology pcie-4",
        "hosts [0, 0, 0, 0], the trace on [0, 1, 2, 3]",
    ),
    "a plan as a job": (
        "fusion.json --plan fusion.json",
        'is JSON with "family", "world_size", "planner", "seed", "buckets", which describes no job',
    ),
    "no JSON": ("hosts.toml --plan fusion.json", "cannot read a job from"),
    "two files": (
        "gradients.json operators.json --plan fusion.json",
        'is JSON with "tensors" and one of 2 files',
    ),
    "absent": ("absent.json --plan fusion.json", "cannot read the trace"),
    "unknown stragglers": (
        "run --plan recorded.json --stragglers often",
        "got the stragglers 'often'; expected exp:MEAN",
    ),
    "stragglers where one rank stands for all": (
        "gradients.json --plan fusion.json --stragglers exp:0.1",
        "--stragglers says nothing about a fusion plan and JSON",
    ),
    "samples of nothing": (
        "run --plan recorded.json --samples 20",
        "expected --stragglers or --failures with it",
    ),
    "an absent plan": ("run --plan absent.json", "cannot read plan file"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("words, said", REFUSED.values(), ids=REFUSED)
def test_what_does_not_belong_is_refused_by_name(words, said, at, monkeypatch):
    (at / "tasks.json").write_text(
        '{"iterations": 1, "tasks": [{"name": "w", "kind": "worker"}], "flows": []}'
    )
    monkeypatch.chdir(at)
    result = call("sim", *words.split(), *(("--json", "-") if words else ()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr and "Traceback" not in result.stderr
