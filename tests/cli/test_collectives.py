"""`wirewise run collective`, in a lab whose hosts are linked in pairs."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from wirewise import plans
from wirewise.cli import collectives
from wirewise.cli.run import app
from wirewise.cli.sources import plan_of
from wirewise.collective import COLLECTIVES, network, save
from wirewise.collective.builders import algorithms, build
from wirewise.errors import InputError
from wirewise.hosts import free_port
from wirewise.lab import Lab
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.topology import lab_hosts


def test_it_says_how_to_start_ranks(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    done = CliRunner().invoke(app, ["collective", "all_reduce:ring:2"])
    assert isinstance(done.exception, InputError)
    assert "wirewise lab run --topology" in str(done.exception)


def test_a_plan_brings_its_own_bound(tmp_path):
    hosts = network(lab_hosts(["80mbit"] * 3))
    planned = PLANNERS["greedy"](CollectiveProblem(network=hosts, collective="all_gather", size_bytes=3e6))
    plans.save(planned, tmp_path / "plan.json")
    save(planned.program, tmp_path / "program.json")
    read = plan_of(str(tmp_path / "plan.json"))
    assert read == planned
    assert plan_of(str(tmp_path / "program.json")) is None
    # Two blocks of 2 MB reach each rank through 10 MB a second.
    assert collectives._bound_s(planned.program, 6_000_000, None, planned) == pytest.approx(0.4)
    assert collectives._bound_s(planned.program, 6_000_000, "lab-3@160mbit", planned) == pytest.approx(0.2)
    assert collectives._bound_s(planned.program, 6_000_000, None, None) is None


@pytest.mark.slow
@pytest.mark.lab
def test_a_program_next_to_torch_in_a_lab(tmp_path):
    save(build("all_reduce", "ring", 3), tmp_path / "ring.json")
    with Lab(3, "200mbit", pairs={}) as lab:
        words = ["-m", "wirewise", "run", "collective", str(tmp_path / "ring.json"), "--size", "300KB"]
        result = lab.run(
            [*words, "--topology", "lab-3@400mbit", "--repeats", "2", "--json", "-"],
            launcher="direct", timeout_s=60,
        )  # fmt: skip
    assert result.ok, result.tails
    record = json.loads("".join(line for line in result.tails[0] if line.startswith(("{", " ", "}"))))
    assert record["collective"] == "all_reduce" and record["algorithm"] == "ring"
    assert len(record["measured"]) == len(record["builtin"]) == 2
    # Two thirds of the bytes leave a rank twice, through a port of 50 MB a second.
    assert record["bound_s"] == pytest.approx(2 * 2 / 3 * 300_000 / 50e6, rel=1e-6)
    assert record["measured_s"] > 0.5 * record["bound_s"]
    assert {(edge["source"], edge["target"]) for edge in record["edges"]} == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert not result.tails[1][-1:] or "{" not in result.tails[1][-1]


@pytest.mark.slow
@pytest.mark.dist
def test_a_rank_that_never_joins_ends_the_others_and_is_named():
    port = free_port("127.0.0.1")
    words = [sys.executable, "-m", "wirewise", "run", "collective", "all_reduce:ring:3", "--timeout", "6"]
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(words, env={**os.environ, **place, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "02"
    ]
    try:
        said = [rank.communicate(timeout=90)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode for rank in ranks)
    for rank, words_of_rank in zip("02", said, strict=True):
        assert f"rank {rank} waited 6 s for rank 1 of 3, which did not start" in " ".join(
            words_of_rank.split()
        )


_EVERY = """
import torch.distributed as dist
from wirewise.collective import COLLECTIVES
from wirewise.collective.builders import algorithms, build
from wirewise.runtime.collective.measure import compare
dist.init_process_group("gloo")
for name in COLLECTIVES:
    found = compare(build(name, algorithms(name)[0], 2, root=0), 4000, repeats=1)
    if found:
        print(found["collective"])
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.dist
def test_all_collectives_have_a_counterpart_of_torch(tmp_path):
    from wirewise.lab import Loopback

    script = tmp_path / "every.py"
    script.write_text(_EVERY)
    assert all(algorithms(name) for name in COLLECTIVES)
    with Loopback() as here:
        result = here.run([str(script)], processes_per_host=2, launcher="direct", timeout_s=60)
    assert result.ok, result.tails
    assert [line for line in result.tails[0] if line in COLLECTIVES] == list(COLLECTIVES)
