"""What a new family of plans has to write: a record, a planner, a lowering and a reader of its job; all else is there.

A toy family decides how many parts a file is sent in, so that packing one part goes on while another is on the wire.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from typer.testing import CliRunner

from wirewise import plans, sim, topology, trace
from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.errors import PlanError
from wirewise.planners import PLANNERS
from wirewise.sim.lowering.kinds import expect, same_ranks
from wirewise.sim.prediction import prediction_of

# The family.


class File(msgspec.Struct, frozen=True, kw_only=True):
    """The job: a file that rank 0 packs and sends to rank 1."""

    size_bytes: float
    pack_s_per_byte: float


class ToyPlan(plans.Plan, frozen=True, kw_only=True, tag="toy"):
    family: ClassVar[str] = "toy"

    parts: int
    predicted_s: float = 0.0

    def check_itself(self) -> None:
        plans.Plan.check_itself(self)
        if self.parts < 1:
            raise PlanError(f"parts is {self.parts} - at `$.parts`; expected at least 1")

    def table(self):
        return ["parts", "ms"], [[str(self.parts), f"{self.predicted_s * 1e3:.3f}"]]


def seconds(file: File, links: Links, parts: int) -> float:
    """The planner's own fast evaluator: the slower of packing and sending sets the pace."""
    part = file.size_bytes / parts
    pack, send = part * file.pack_s_per_byte, links.pair(0, 1).seconds(part)
    return pack + send + (parts - 1) * max(pack, send)


def toy(job: File, links: Links, *, seed: int = 0, most: int = 64) -> ToyPlan:
    """The number of parts that takes least."""
    parts = min(range(1, most + 1), key=lambda count: seconds(job, links, count))
    return ToyPlan(
        world_size=2, planner="toy", seed=seed, parts=parts, predicted_s=seconds(job, links, parts)
    )


def lower_toy(plan, job, links):
    file, links = expect("job", job, File, plan), expect("links", links, Links, plan)
    same_ranks(plan, links.world_size, "the links have")
    part, packed, sent, spans = file.size_bytes / plan.parts, 0.0, 0.0, []
    for number in range(plan.parts):
        ready = packed + part * file.pack_s_per_byte
        begin = max(ready, sent)
        arrived = begin + links.pair(0, 1).seconds(part)
        spans.append(sim.Span(rank=0, phase="pack", exchange=f"part {number}", start_s=packed, end_s=ready))
        spans.append(sim.Span(rank=0, phase="wire", exchange=f"part {number}", start_s=begin, end_s=arrived))
        packed, sent = ready, arrived
    return prediction_of(plan, "file", sim.Timeline(spans=tuple(spans), world_size=2), sent)


def read_file(path: Path) -> File:
    return msgspec.json.decode(path.read_bytes(), type=File)


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    monkeypatch.setitem(plans.PLANS, "toy", ToyPlan)
    monkeypatch.setitem(PLANNERS, "toy", {"toy": toy})
    monkeypatch.setitem(sim.LOWERINGS, "toy", lower_toy)
    monkeypatch.setitem(trace.JOB_READERS, "size_bytes", trace.JobReader(File, read_file))


# What it gets for that.

PROBLEM = (File(size_bytes=8e6, pack_s_per_byte=5e-8), Links.uniform(2, 1e7, 2e-3))


def test_it_keeps_the_laws(tmp_path):
    plan = toy(*PROBLEM)
    assert plan.parts > 1
    found = sim.predict(plan, *PROBLEM)
    assert found.step_s == pytest.approx(plan.predicted_s, rel=1e-9)
    assert sim.predict(plan, PROBLEM[0], PROBLEM[1].scaled(2.0)).step_s <= found.step_s
    assert found.breakdown.overlapped_communication_s > 0
    plans.save(plan, tmp_path / "plan.json")
    assert plans.load(tmp_path / "plan.json") == plan
    assert "toy plan by 'toy' for 2 ranks" in plan.summary()
    assert found.summary().startswith("simulated: file of 2 ranks under the toy plan by 'toy' takes ")


def test_what_it_cannot_use_is_refused():
    plan = toy(*PROBLEM)
    with pytest.raises(PlanError, match=r"at `\$\.parts`"):
        sim.predict(msgspec.structs.replace(plan, parts=0), *PROBLEM)
    with pytest.raises(PlanError, match="world size 2, the links have 3 ranks"):
        sim.predict(plan, PROBLEM[0], Links.uniform(3, 1e7))


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def files(tmp_path):
    """The job, a topology of two hosts, and where the plan goes."""
    job = tmp_path / "job.json"
    job.write_bytes(msgspec.json.encode(PROBLEM[0]))
    topology.save(topology.lab_hosts(["80mbit"] * 2), tmp_path / "two.toml")
    return job, tmp_path / "two.toml", tmp_path / "plan.json"


def test_commands_offer_it(files):
    job, two, out = files
    assert "toy" in call("plan", "--help")
    assert "One of toy." in call("plan", "toy", "--help")
    assert json.loads(call("list", "planners", "--json", "-"))["planners"]["toy"] == ["toy"]
    said = call("plan", "toy", job, "--topology", two, "--seed", 3, "-o", out)
    plan = plans.load(out)
    assert plan == toy(PROBLEM[0], Links.of(topology.load(two)), seed=3)
    assert said.splitlines()[1:] == ["parts\tms", f"{plan.parts}\t{plan.predicted_s * 1e3:.3f}"]
    told = json.loads(call("plan", "toy", job, "--topology", two, "--with", "toy", "--json", "-"))
    assert told["plan"]["parts"] == plan.parts
    assert f"takes {plan.predicted_s * 1e3:.3f} ms" in call("sim", job, "--plan", out, "--topology", two)
    call("sim", job, "--plan", out, "--topology", two, "--html", out.with_suffix(".html"))
    page = out.with_suffix(".html").read_text("utf-8")
    assert "under the toy plan by toy" in page and "rank 0, wire: part 0, " in page
    assert "parts" in call("show", out) and "right" in call("check", out, "--topology", two)


def test_what_it_has_no_use_for_is_refused(files):
    job, two, _ = files
    done = CliRunner().invoke(app, ["plan", "toy", str(job), "--topology", str(two), "--time-budget", "1"])
    assert (
        done.exit_code == 2
        and "planner 'toy' has no use for time_budget_s; it takes: seed, most" in done.output
    )


def test_a_family_is_short():
    family = (
        inspect.getsource(inspect.getmodule(toy)).partition("# The family.")[2].partition("# What it gets")[0]
    )
    assert len(family.splitlines()) < 80
