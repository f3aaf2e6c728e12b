"""Runs of parallel plans: what may be asked, what is made of the times, the page, and a training in the lab."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from tests.runtime.parallel.plans import data_parallel
from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.plans.parallel import BlockChoice
from wirewise.runtime.joint_graph import capture_step
from wirewise.sim import predict
from wirewise_papers.parallel_models import mlp
from wirewise_papers.rhino import experiment as rhino
from wirewise_papers.rhino.job import SIZES, RhinoJob, RhinoOptions
from wirewise_papers.rhino.page import parallel_comparison, parallel_html
from wirewise_papers.rhino.records import ParallelTimes
from wirewise_papers.rhino.ways import is_supported

LINKS = Links.uniform(4, 1e7, 1e-4)


@pytest.fixture(scope="module")
def job_and_graph():
    sizes = {"batch": 32, "width": 32, "layers": 2}
    wish = RhinoOptions(model="mlp", gflops=1.0)
    step, smaller = (capture_step(*mlp(**{**sizes, "batch": batch})) for batch in (32, 16))
    plan = msgspec.structs.replace(
        data_parallel(step, smaller, wish.hosts),
        choices=(BlockChoice(block="blocks.0-1", strategy="activations by dimension 0"),),
        why=("Nothing else was tried.",),
    )
    return RhinoJob(wish=wish, sizes=sizes, plans={"rhino": plan}, ways=("ddp",)), rhino.graph_of(wish, sizes)


def test_hosts_that_cannot_share_the_batch_are_refused():
    with pytest.raises(InputError, match="3 hosts cannot share a batch of 8 evenly; expected a divisor of 8"):
        RhinoOptions(hosts=3)
    with pytest.raises(InputError, match="4 hosts cannot be dealt out to 3 stages evenly"):
        RhinoOptions(stages=3)
    with pytest.raises(InputError, match="links name host 4"):
        RhinoOptions(links={4: "50mbit"})


def test_plans_for_other_ranks_are_refused(job_and_graph):
    job, _ = job_and_graph
    with pytest.raises(InputError, match="plan 'rhino' is for 4 ranks on 2 hosts"):
        RhinoJob(wish=RhinoOptions(model="mlp", hosts=2), sizes=job.sizes, plans=job.plans)
    with pytest.raises(InputError, match="got the ways ddp, tag and no deployment; expected both"):
        msgspec.structs.replace(job, ways=("ddp", "tag"))


def test_operators_take_what_the_accelerator_needs(job_and_graph):
    job, graph = job_and_graph
    products = [node for node in graph.nodes if node.op == "aten.mm.default"]
    # Forward, and both gradients of each layer but that of the batch.
    assert len(products) == 4 + 7
    assert [node.time_s for node in products] == pytest.approx([2 * 32 * 32 * 128 / 1e9] * 11)
    others = {node.time_s for node in graph.nodes if node.computes and node not in products}
    assert others == {0.0, 1e-6 * job.wish.launch_us}


def test_an_update_reads_and_writes_the_largest_stage(job_and_graph):
    job, graph = job_and_graph
    plan = job.plans["rhino"]
    alone = rhino.predicted_s(plan, graph, LINKS, msgspec.structs.replace(job.wish, memory_gbyte_s=1e6))
    assert alone == pytest.approx(predict(plan, graph, LINKS).step_s + 3e-6 * job.wish.launch_us)
    slow = msgspec.structs.replace(job.wish, memory_gbyte_s=1e-3)
    update_s = rhino.predicted_s(plan, graph, LINKS, slow) - predict(plan, graph, LINKS).step_s
    assert update_s == pytest.approx(8 * graph.parameter_bytes / 1e6)


def test_each_way_is_one_that_users_take():
    assert all([name for name in SIZES if not is_supported(way, name)] == ["gcn"] for way in ("ddp", "tag"))
    assert [name for name in SIZES if not is_supported("tensor", name)] == ["unet"]


def test_times_stand_beside_predictions_and_losses_beside_those_of_one_device(job_and_graph):
    job, graph = job_and_graph
    found = {
        "rhino": ParallelTimes(losses=[2.0, 1.0], steps_s=[0.2, 0.4, 0.3], sent_bytes=[10, 30, 20]),
        "ddp": ParallelTimes(losses=[2.0, 1.001], steps_s=[0.6, 0.6], sent_bytes=[]),
    }
    run = rhino.summarise(job, graph, LINKS, found, [2.0, 1.0], (1.0, 2.0))
    own, ddp = run.plans["rhino"], run.plans["ddp"]
    assert (own.step_s, own.bytes_sent, own.loss_equal) == (0.3, 20, True)
    assert own.predicted_bytes == job.plans["rhino"].collective_bytes
    assert own.predicted_step_s == rhino.predicted_s(job.plans["rhino"], graph, LINKS, job.wish)
    assert (ddp.bytes_sent, ddp.loss_equal) == (None, False)
    assert ddp.predicted_step_s > 0 and ddp.predicted_bytes == pytest.approx(
        6 * graph.parameter_bytes, rel=1e-3
    )
    assert ddp.loss_error == pytest.approx(1e-3) and run.fastest == "rhino"
    told = parallel_comparison(run)
    assert "LOSSES DIFFER" in told.sentence and "the plan is 2.00" in told.sentence
    assert told.rows[1][-1] == "OFF BY 1.0e-03" and told.rows[0][-1] == "equal"
    page = parallel_html(run)
    assert "What the plan does" in page and "activations by dimension 0" in page and "Nothing else" in page


@pytest.mark.lab
@pytest.mark.slow
def test_a_plan_is_trained_in_the_lab(tmp_path):
    words = ["--model", "mlp", "--hosts", "2", "--link", "1gbit", "--steps", "1", "--turns", "1"]
    words += ["--against", "ddp,tag", "--gflops", "50", "--out", str(tmp_path / "run"), "--json", "-"]
    result = CliRunner().invoke(app, ["run", "rhino", *words])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["plans"]) == {"rhino", "ddp", "tag"}
    for one in found["plans"].values():
        assert one["loss_equal"] and one["step_s"] > 0 and one["bytes_sent"] > 0
    assert all(found["plans"][name]["predicted_step_s"] > 0 for name in ("rhino", "tag"))
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "plan.json").exists()
