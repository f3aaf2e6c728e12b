"""Mini-batch training over partitioned features: what a job may ask for, and the whole way in a lab."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
import time

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.harness.processes import run_ranks_as_processes
from wirewise import lab, plans
from wirewise.cli.main import app
from wirewise.errors import GraphError, InputError
from wirewise.graph import load, read_mapped, write_graph
from wirewise.runtime import full_graph
from wirewise.trials.last_words import failure_reason
from wirewise_papers.salientpp.experiment import MiniBatchJob, prepare, run
from wirewise_papers.salientpp.records import MiniBatchRun

GRAPH = "block:nodes=1500,classes=4,features=16,noise=1.0,train=0.3"


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"modes": ()}, "expected some of: base, pipeline"),
        ({"modes": ("base", "best")}, "modes is .*'best'.*; expected some of: base, pipeline"),
        ({"policies": ("best",)}, "policies is .*'best'.*; expected some of: vip, "),
        ({"train_share": 0.0}, "train_share is 0"),
        ({"link": "fast"}, "fast"),
        ({"fanouts": ()}, "got fanouts"),
        ({"fanouts": (5, -2)}, "each of at least 0, or -1"),
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"tested": 0}, "tested is 0"),
        ({"alpha": -0.5}, "alpha is -0.5"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"timeout_s": 0.0}, "timeout_s is 0"),
        ({"hosts": 3}, "4 workers cannot be spread evenly over 3 hosts"),
        ({"policies": ("vip", "best")}, "expected some of: vip, "),
        ({"codec": "zip"}, "unknown gradient codec 'zip'"),
        ({"topology": "cut"}, "topology is 'cut'; expected one of: replicated, partitioned"),
        ({"topology": "partitioned", "threads": 2}, "2 threads cannot sample a partitioned topology"),
        ({"device": "tpu"}, "device is 'tpu'; expected one of: cpu, cuda"),
        ({"share": "fair"}, "share is 'fair'; expected one of: equal, balanced"),
        ({"processors": "many"}, "processors is 'many'; expected one of: shared, own"),
        ({"processors": "own", "device": "cuda"}, "emulated on device 'cpu'; got device 'cuda'"),
        ({"network": "air"}, "network is 'air'; expected one of: auto, lab, slurm, loopback"),
        ({"prefix": 1.5}, "prefix is 1.5"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"step_s": -1.0}, "step_s is -1"),
    ],
)
def test_what_cannot_be_used_is_refused_before_machines_start(setting, told):
    with pytest.raises(InputError, match=told):
        MiniBatchJob(**setting)


def test_what_machines_read_belongs_together(tmp_path):
    job = MiniBatchJob(dataset=GRAPH, workers=3, fanouts=(6, 4), batch_size=16, alpha=0.3, train_share=1.0)
    prepare(job, tmp_path)
    graph = read_mapped(tmp_path / "graph")
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


def test_training_and_test_nodes_are_the_same_for_all_numbers_of_machines(tmp_path):
    found = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        prepare(
            MiniBatchJob(dataset=GRAPH, workers=workers, fanouts=(6, 4), train_share=0.5, tested=50), folder
        )
        graph = read_mapped(folder / "graph")
        with np.load(folder / "nodes.npz") as nodes:
            # Nodes are told by their features: their numbers differ.
            found.append([{graph.x[node].tobytes() for node in nodes[part]} for part in ("train", "test")])
    assert found[0] == found[1]
    assert len(found[0][1]) == 50


def test_a_device_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="finds no CUDA device here; choose 'cpu'"):
        run(MiniBatchJob(dataset=GRAPH, device="cuda"), tmp_path / "run", print)
    assert not (tmp_path / "run").exists()


def on_loopback(folder, **knobs):
    return run(job_of(**knobs), folder, lambda text: None).modes


def job_of(**knobs):
    return MiniBatchJob(
        dataset=GRAPH, workers=2, network="loopback", fanouts=(6, 4), batch_size=32, train_share=1.0, epochs=2,
        tested=200, **knobs,
    )  # fmt: skip


def work(rank, folders):
    """Be a rank of one job after another."""
    from wirewise.runtime.transport import transport_of
    from wirewise.trials.rank import Rank
    from wirewise_papers.salientpp import worker as salientpp_worker

    for folder in folders:
        job = msgspec.json.decode((folder / "job.json").read_bytes(), type=MiniBatchJob)
        salientpp_worker.work(Rank(job, folder, transport_of(timeout_s=job.timeout_s)))


@pytest.mark.dist
@pytest.mark.slow
def test_a_partitioned_topology_trains_bit_for_bit_alike(tmp_path):
    folders = [tmp_path / topology for topology in ("replicated", "partitioned")]
    for folder in folders:
        folder.mkdir()
        prepare(job_of(topology=folder.name, modes=("base", "int8")), folder)
    run_ranks_as_processes(2, work, folders)
    both = [
        msgspec.json.decode((folder / "outcome.json").read_bytes(), type=MiniBatchRun).modes
        for folder in folders
    ]
    for name, whole in both[0].items():
        parts = both[1][name]
        assert parts.loss == whole.loss and parts.accuracy == whole.accuracy > 0.5
        assert (parts.remote_rows, parts.bytes_sent) == (whole.remote_rows, whole.bytes_sent)
        assert whole.sampling_bytes == 0 < parts.sampling_bytes
        # No link is known here, so that none can bind.
        assert whole.link_s == 0 and whole.binding == "processors"


@pytest.mark.dist
@pytest.mark.slow
def test_processors_of_their_own_are_slept_and_send_what_real_ones_send(tmp_path):
    modes = ("base", "int8", "gradients")
    folders = [tmp_path / processors for processors in ("shared", "own")]
    for folder in folders:
        folder.mkdir()
        prepare(job_of(processors=folder.name, modes=modes, step_s=0.01), folder)
    run_ranks_as_processes(2, work, folders)
    real, slept = (
        msgspec.json.decode((folder / "outcome.json").read_bytes(), type=MiniBatchRun) for folder in folders
    )
    assert (real.processors, slept.processors) == ("shared", "own")
    for name in modes:
        one, other = real.modes[name], slept.modes[name]
        assert other.remote_rows == one.remote_rows and other.bytes_sent == one.bytes_sent
        assert other.gradient_bytes == one.gradient_bytes > 0
        assert other.accuracy is None and other.loss is None
        # Beside what is asked for, a step sleeps as long as its computing took.
        assert other.slept_s > one.slept_s == pytest.approx(0.01 * real.batches)
        assert other.epoch_s > other.slept_s


@pytest.mark.gpu
def test_a_device_trains_alike(tmp_path):
    modes = ("pipeline", "gradients")
    cpu, cuda = (
        on_loopback(tmp_path / device, device=device, modes=modes, dropout=0.0) for device in ("cpu", "cuda")
    )
    for name, one in cpu.items():
        assert cuda[name].loss == pytest.approx(one.loss, rel=1e-2)
        assert (cuda[name].remote_rows, cuda[name].bytes_sent) == (one.remote_rows, one.bytes_sent)


def test_a_graph_without_training_nodes(tmp_path):
    graph = load(GRAPH)
    write_graph(
        dataclasses.replace(graph, split=np.full(len(graph.split), 2, np.uint8)), tmp_path / "graph.npz"
    )
    with pytest.raises(InputError, match="expected at least one training node in the graph"):
        prepare(MiniBatchJob(dataset=str(tmp_path / "graph.npz"), workers=2), tmp_path)


def test_rows_beyond_the_memory_are_refused_before_machines_start(tmp_path, monkeypatch):
    monkeypatch.setattr(full_graph, "available_bytes", lambda: 100_000)
    with pytest.raises(InputError, match="cached rows of 16 features take 124800 bytes, and 100000 are free"):
        prepare(MiniBatchJob(dataset=GRAPH, workers=3, fanouts=(6, 4), alpha=0.3, train_share=1.0), tmp_path)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_file_that_is_cut_short_in_mid_run_is_named(tmp_path):
    def cut():
        # Ranks print when they train.
        while not any(log.stat().st_size for log in tmp_path.glob("run/**/host-*.log")):
            time.sleep(0.1)
        os.truncate(tmp_path / "run" / "graph" / "x.npy", 200)

    threading.Thread(target=cut, daemon=True).start()
    job = MiniBatchJob(
        dataset=GRAPH,
        workers=2,
        network="loopback",
        fanouts=(6, 4),
        modes=("pipeline",),
        epochs=10**6,
        timeout_s=60.0,
    )
    with pytest.raises(GraphError, match=r"x\.npy changed while it was in use: it has 200 bytes"):
        run(job, tmp_path / "run", lambda text: None)


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_d5_a_machine_that_dies_ends_the_run_with_its_name(tmp_path):
    job = MiniBatchJob(
        dataset=GRAPH, workers=2, fanouts=(6, 4), modes=("pipeline",), epochs=10_000, timeout_s=30.0
    )
    prepare(job, tmp_path)

    def listen(host, line):
        if "epoch 1 of" in line:
            network.kill(1)

    with lab.Lab(2, "200mbit") as network:
        command = ["-m", "wirewise_papers.salientpp.worker", str(tmp_path)]
        options = {"launcher": "direct", "folder": tmp_path / "logs", "listener": listen, "timeout_s": 240.0}
        done = network.run(command, **options)
    assert not done.ok and not done.timed_out
    assert re.search("worker 0: .*rank 0 waited in .*: rank 1 ", failure_reason(done, tmp_path / "logs"))


@pytest.mark.lab
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
