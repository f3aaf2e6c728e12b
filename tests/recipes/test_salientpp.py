"""Mini-batch training over partitioned features: what a job may ask for, and the whole way in a lab."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from wirewise import plans
from wirewise.cli.main import app
from wirewise.errors import InputError
from wirewise.graph import read_graph
from wirewise.recipes.salientpp import Job, prepare

GRAPH = "block:nodes=1500,classes=4,features=16,noise=1.0,train=0.3"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"modes": ()}, "mode none is unknown"),
        ({"modes": ("base", "best")}, "mode 'best' is unknown; expected some of: base, pipeline"),
        ({"policy": "best"}, "cache policy 'best'"),
        ({"train_share": 0.0}, "train_share is 0"),
        ({"link": "fast"}, "fast"),
        ({"hosts": 3}, "4 workers cannot be spread evenly over 3 hosts"),
        ({"others": ("vip", "best")}, "cache policy 'best'"),
        ({"codec": "zip"}, "unknown gradient codec 'zip'"),
    ],
)
def test_what_cannot_be_used_is_refused_before_machines_start(setting, told):
    with pytest.raises(InputError, match=told):
        Job(**setting)


def test_what_machines_read_belongs_together(tmp_path):
    job = Job(dataset=GRAPH, workers=3, fanouts=(6, 4), batch_size=16, alpha=0.3, train_share=1.0)
    prepare(job, tmp_path)
    graph = read_graph(tmp_path / "graph.npz")
    with np.load(tmp_path / "nodes.npz") as nodes:
        offsets, train = nodes["offsets"], nodes["train"]
    plan = plans.load(tmp_path / "plan.json")
    assert offsets[-1] == graph.num_nodes == plan.num_nodes == 1500
    assert (graph.split[train] == 0).all()
    assert len(train) == (graph.split == 0).sum()
    plan.check_partition(np.repeat(np.arange(3), np.diff(offsets)))
    for number, machine in enumerate(plan.machines):
        own = (machine.ids >= offsets[number]) & (machine.ids < offsets[number + 1])
        assert len(machine.ids) == 150 and not own.any()


@pytest.mark.lab
@pytest.mark.slow
def test_the_whole_way(tmp_path):
    words = ["run", "salientpp", "--dataset", GRAPH, "--workers", 2, "--link", "200mbit", "--fanouts", "6,4"]
    words += ["--batch-size", 32, "--train-share", 1, "--epochs", 2, "-o", tmp_path / "run", "--json", "-"]
    words += ["--policy", "vip,degree", "--codec", "bf16"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout[result.stdout.index("{") :])
    modes = found["modes"]
    assert list(modes) == ["base", "pipeline", "cache", "int8", "gradients"]
    # The same batches in every mode; the cache fetches fewer rows, and 8 bits fewer bytes.
    assert modes["base"]["remote_rows"] == modes["pipeline"]["remote_rows"] > modes["cache"]["remote_rows"]
    assert modes["base"]["bytes_sent"] > modes["cache"]["bytes_sent"] > 2 * modes["int8"]["bytes_sent"]
    assert (
        modes["base"]["loss"] == modes["pipeline"]["loss"] == pytest.approx(modes["cache"]["loss"], rel=1e-6)
    )
    assert modes["int8"]["loss"] == pytest.approx(modes["base"]["loss"], rel=0.1)
    assert modes["cache"]["remote_rows"] / modes["base"]["remote_rows"] == pytest.approx(
        found["predicted_remaining"], abs=0.1
    )
    assert all(
        mode["accuracy"] > 0.5 and set(mode["stage_s"]) >= {"rows", "train"} for mode in modes.values()
    )
    assert found["sampler_edges_per_s"] > 1e5
    assert found["policies"]["vip"]["0.5"] < found["policies"]["degree"]["0.5"] < 1
    # bfloat16 halves the gradients.
    assert 1.9 < modes["int8"]["gradient_bytes"] / modes["gradients"]["gradient_bytes"] < 2.1
    for mode in modes.values():
        assert mode["bytes_sent"] == pytest.approx(mode["bytes_predicted"], rel=0.15)
    assert "Stages of a batch" in (tmp_path / "run" / "report.html").read_text()
