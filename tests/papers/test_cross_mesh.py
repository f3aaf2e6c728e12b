"""Reshard plans in the lab: what a job may ask for, what is made of the times, and the whole way."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app
from wirewise.cost import TCP_PAYLOAD, Links
from wirewise.errors import InputError
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import LaidOutTensor, parse_sharding, save
from wirewise_papers.cross_mesh.job import CrossMeshOptions, ReshardJob, ranks_per_host
from wirewise_papers.cross_mesh.page import reshard_comparison, reshard_html
from wirewise_papers.cross_mesh.planning import links_of, make_job, predicted_s, summarise
from wirewise_papers.cross_mesh.records import MoveFacts
from wirewise_papers.interleaved import Measurements


def a_plan(size: int = 512, rates=("200mbit",) * 3, per_host: int = 2, **knobs):
    one = LaidOutTensor(
        name="x",
        shape=(size, 1024),
        dtype="float32",
        source=parse_sharding("1:R,R"),
        target=parse_sharding(f"2x{per_host}@{per_host}-{3 * per_host - 1}:R,R"),
    )
    return cross_mesh(one, Links.of_lab(rates, ranks_per_host=per_host, payload=1.0), **knobs)


def times(seconds: float, equal: bool = True) -> Measurements:
    return Measurements(
        steps_s=[seconds, 2 * seconds, seconds],
        received_by_rank=[1] * 6,
        sent_by_rank=[2] * 6,
        outcome=msgspec.to_builtins(MoveFacts(equal=equal)),
    )


def test_a_job_has_the_plan_and_others_for_the_same_tensors():
    job = make_job(
        a_plan(), CrossMeshOptions(against=("p2p", "ring", "local_all_gather"), links={1: "100mbit"})
    )
    assert {name: plan.strategy for name, plan in job.plans.items()} == {
        "plan": "ring",
        "p2p": "p2p",
        "local_all_gather": "local_all_gather",
    }
    assert job.links == ("200mbit", "100mbit", "200mbit")
    assert ranks_per_host(job.plans["plan"]) == 2


def test_hosts_that_no_lab_has_are_refused():
    plan = msgspec.structs.replace(a_plan(), hosts=(0, 1, 0, 1, 2, 2))
    with pytest.raises(InputError, match="expected equally many on each host, host by host"):
        make_job(plan, CrossMeshOptions())
    with pytest.raises(InputError, match="expected hosts for 2 links"):
        ReshardJob(plans={"plan": a_plan()}, links=("1gbit",) * 2)
    with pytest.raises(InputError, match="got no plan"):
        ReshardJob(plans={}, links=("1gbit",) * 2)


def test_times_stand_beside_bound_and_prediction():
    job = make_job(a_plan(), CrossMeshOptions())
    run = summarise(job, {"plan": times(0.1), "p2p": times(0.4, equal=False)})
    assert (run.measured_s, run.equal, run.ranks) == (0.1, False, 6)
    assert run.bound_s == pytest.approx(512 * 1024 * 4 / 25e6)
    assert run.predicted_s == predicted_s(job, job.plans["plan"])
    # The whole prediction but its latencies is longer by the headers.
    assert run.predicted_s == pytest.approx(job.plans["plan"].predicted_s / TCP_PAYLOAD, rel=1e-3)
    assert run.plans["p2p"].bytes_between_hosts == 4 * run.plans["p2p"].bytes_sent // 4
    told = reshard_comparison(run)
    assert "PARTS DIFFER" in told.sentence and told.sentence.startswith("plan is the fastest of 2 plans")
    assert told.rows[0][:2] == ("plan", "ring")
    page = reshard_html(run, job.plans, links_of(job))
    assert "What moves: p2p" in page and "reshard plan by" in page


@pytest.mark.lab
def test_a_plan_is_carried_out_in_the_lab(tmp_path):
    file = tmp_path / "plan.json"
    save(a_plan(128, ("1gbit",) * 3, 1), file)
    words = ["--link", "1gbit", "--turns", "2", "--out", str(tmp_path / "run"), "--json", "-"]
    done = CliRunner().invoke(app, ["run", "reshard", str(file), *words])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["equal"] is True
    assert told["measured_s"] > 0 and told["bound_s"] == pytest.approx(128 * 4096 / 125e6)
    assert told["predicted_s"] > told["bound_s"]
    size = 128 * 4096
    # The counters of the interfaces: the slice enters each receiving host once, with headers.
    assert size <= told["plans"]["plan"]["received_bytes"][1] <= 1.3 * size
    assert told["plans"]["p2p"]["sent_bytes"][0] >= 2 * size
    assert (tmp_path / "run" / "report.html").exists()


def test_other_plans_are_refused(tmp_path):
    from tests.conformance.test_plan_laws import placement

    save(placement(), tmp_path / "plan.json")
    done = CliRunner().invoke(app, ["run", "reshard", str(tmp_path / "plan.json")])
    assert (
        done.exit_code == 2 and "is a placement plan; expected one of `wirewise plan reshard`" in done.output
    )
