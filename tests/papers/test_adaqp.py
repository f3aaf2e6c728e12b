"""The main job from partition to result, over a real network, and what happens when a host dies in it."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from wirewise import graph, lab
from wirewise.cli.main import app
from wirewise.errors import PeerError
from wirewise.files import write_json
from wirewise.results import EpochRecord
from wirewise.trials.start import JOB
from wirewise_papers.adaqp import experiment as adaqp
from wirewise_papers.adaqp.job import FullGraphJob
from wirewise_papers.adaqp.records import RunResult
from wirewise_papers.adaqp.summary import to_json_object

GRAPH = "block:nodes=600,features=16,classes=4"


class Silent:
    """Hears everything, says nothing."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.epochs: list[tuple[str, EpochRecord]] = []

    def start(self, modes: list[str], epochs: int) -> None:
        pass

    def epoch(self, mode: str, record: EpochRecord) -> None:
        self.epochs.append((mode, record))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self) -> None:
        pass


def small_job(**changes: object) -> FullGraphJob:
    settings = {
        "dataset": GRAPH,
        "workers": 2,
        "hosts": 2,
        "epochs": 4,
        "turn": 2,
        "hidden": 16,
        "modes": ("fp32", "uniform-8"),
        "evaluate_every": 2,
        "timeout_s": 20.0,
    }
    return FullGraphJob(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.lab
def test_the_command_on_a_lab(tmp_path: Path) -> None:
    out, record = tmp_path / "run", tmp_path / "result.json"
    command = ["run", "adaqp", "--dataset", GRAPH, "--workers", "2", "--epochs", "6", "--hidden", "16"]
    command += ["--link", "100mbit", "--modes", "fp32,adaqp", "--out", str(out), "--json", str(record)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    said = json.loads(record.read_text())
    assert {"dataset", "workers", "network", "link_bytes_per_s", "epochs", "modes"} <= said.keys()
    assert {"speedup_epoch", "speedup_time_to_loss", "accuracy_delta_points"} <= said.keys()
    assert (said["network"], said["link_bytes_per_s"], said["epochs"]) == ("lab", 12.5e6, 6)
    for mode in said["modes"].values():
        assert {
            "epoch_s",
            "time_to_reference_loss_s",
            "final_loss",
            "accuracy",
            "bytes_sent",
            "mean_bits",
        } <= mode.keys()
    result = msgspec.json.decode((out / "result.json").read_bytes(), type=RunResult)
    fp32 = result.modes["fp32"]
    assert fp32.mean_bits == 32
    # Every payload byte crossed the interfaces that the kernel counts, with headers and gradients on top.
    assert fp32.kernel_bytes_sent is not None
    assert fp32.kernel_bytes_sent >= fp32.bytes_sent
    assert result.modes["adaqp"].bytes_sent < fp32.bytes_sent
    assert CliRunner().invoke(app, ["show", str(out / "plan-adaqp.json")]).exit_code == 0
    assert "<svg" in (out / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.dist
def test_on_loopback_it_says_so(tmp_path: Path) -> None:
    progress = Silent()
    result = adaqp.run(small_job(network="loopback"), tmp_path, progress)
    assert result.network == "loopback"
    assert result.link_bytes_per_s is None
    assert "loopback" in result.notes[0]
    assert len(progress.epochs) == 8
    assert result.modes["fp32"].kernel_bytes_sent is None


@pytest.mark.lab
@pytest.mark.slow
def test_a_killed_host_ends_the_job_with_its_name(tmp_path: Path) -> None:
    """X8: the others raise within the timeout and name the dead rank; nothing stays behind."""
    job = small_job(workers=3, hosts=3, epochs=100_000, modes=("fp32",), evaluate_every=0, network="lab")
    adaqp.prepare_parts(job, tmp_path, Silent())
    write_json(tmp_path / JOB, job)
    with lab.Lab(3, "100mbit") as network:
        killed_s: list[float] = []

        def kill() -> None:
            events = tmp_path / "events.jsonl"
            while not (events.exists() and events.stat().st_size):
                time.sleep(0.05)
            network.kill(2)
            killed_s.append(time.monotonic())

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        result = network.run(
            ["-m", "wirewise_papers.adaqp.worker", str(tmp_path)], launcher="direct", timeout_s=90
        )
        ended_s = time.monotonic()
        killer.join(timeout=5)
    assert not result.timed_out
    assert ended_s - killed_s[0] <= job.timeout_s + 5
    assert all(result.exit_codes)
    for tail in result.tails[:2]:
        said = "\n".join(tail)
        assert "PeerError" in said, said
        assert "rank 2" in said, said


@pytest.mark.slow
@pytest.mark.dist
def test_a_failing_worker_is_reported_with_its_words_and_its_log(tmp_path: Path) -> None:
    job = small_job(network="loopback", modes=("adaqp-paper",), dataset=GRAPH + ",directed=true")
    with pytest.raises(PeerError, match=r"undirected graph.*The full logs are in"):
        adaqp.run(job, tmp_path, Silent())


@pytest.mark.slow
@pytest.mark.dist
def test_a_graph_without_test_nodes_has_no_test_accuracy(tmp_path: Path) -> None:
    data = dataclasses.replace(graph.load(GRAPH), split=np.zeros(600, np.uint8))
    graph.write_graph(data, tmp_path / "all-train.npz")
    job = small_job(network="loopback", modes=("fp32",), dataset=str(tmp_path / "all-train.npz"))
    result = adaqp.run(job, tmp_path / "run", Silent())
    assert {split for record in result.modes["fp32"].epochs for split in record.accuracy} == {"train"}
    assert to_json_object(result)["modes"]["fp32"]["accuracy"] is None


def test_time_to_loss_counts_evaluations_and_smooths() -> None:
    records = [EpochRecord(epoch=i, loss=10.0 - i, train_s=1.0, eval_s=0.5 * (i % 2)) for i in range(10)]
    assert adaqp.smoothed_losses(records)[4] == 8.0
    assert adaqp.time_to_loss(records, 8.0) == 5 * 1.0 + 2 * 0.5
    assert adaqp.time_to_loss(records, 0.0) is None
