"""`wirewise recover`: places by options and by srun, and trainings on two hosts that outlive a rank and a host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness.slurm import ROOT
from tests.hosts.test_allocation import STEP
from wirewise.cli import recover
from wirewise.cli.options import GivenOptions
from wirewise.cli.recover import HostOptions
from wirewise.errors import InputError
from wirewise.hosts import allocation
from wirewise.hosts.allocation import HostPlace
from wirewise.hosts.interfaces import interface_of
from wirewise.lab import SlurmCluster
from wirewise.runtime.recovery import Recoveries
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions


@pytest.fixture
def variables(monkeypatch):
    """Variables of this process without a place; the test may change them."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "GLOO_", "WIREWISE_"))
    }
    monkeypatch.setattr(os, "environ", kept)
    return kept


def place(**options: object) -> HostPlace:
    return recover._place(HostOptions(**options), frozenset(options))  # type: ignore[arg-type]


def test_a_place_comes_from_the_options(variables):
    assert place() == HostPlace(0, ("127.0.0.1",), 0)
    assert place(hosts=2, node_rank=1, address="head") == HostPlace(1, ("head", ""), 29500)
    assert place(hosts=2, address="head", port=7).port == 7


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hosts": 2}, "got --hosts 2 without --address; expected the address of host 0"),
        ({"hosts": 2, "node_rank": 2, "address": "head"}, "got --node-rank 2 of --hosts 2"),
        ({"node_rank": 1}, "got --node-rank 1 of --hosts 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(variables, options, told):
    with pytest.raises(InputError, match=re.escape(told)):
        place(**options)


def test_a_place_comes_from_srun_where_no_option_says_it(variables, monkeypatch):
    names = SimpleNamespace(returncode=0, stdout="h0\nh1\n")
    monkeypatch.setattr(allocation.subprocess, "run", lambda *_, **__: names)
    step = {**STEP, "SLURM_STEP_NODELIST": "h[0-1]"}
    variables.update(step, SLURM_STEP_TASKS_PER_NODE="1(x2)")
    assert place() == HostPlace(1, ("h0", "h1"), 15_000 + 70 * 16 + 2)
    assert place(port=7).port == 7
    assert place(hosts=1, node_rank=0) == HostPlace(0, ("127.0.0.1",), 0)
    variables.update(step)
    with pytest.raises(InputError, match=r"srun has started 3 tasks on a host.*--ntasks-per-node=1"):
        place()


def test_only_a_script_is_taken(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    assert (
        recover._script([str(script), "-x"])
        == recover._script(["python", str(script), "-x"])
        == (str(script), ["-x"])
    )
    for wrong in (["torchrun", str(script)], ["python", "-m", "train"], ["missing.py"], ["python"]):
        with pytest.raises(InputError, match=r"expected SCRIPT\.py and its arguments"):
            recover._script(wrong)


def test_ranks_inherit_no_place_and_the_interface_to_the_other_hosts(variables, monkeypatch, capsys):
    monkeypatch.setattr(recover, "interface_towards", lambda hosts, host: f"to-{hosts[0]}")
    variables.update(RANK="3", MASTER_ADDR="x")
    recover._prepare(HostPlace(1, ("head", ""), 1), "")
    assert variables["GLOO_SOCKET_IFNAME"] == "to-head" and not {"RANK", "MASTER_ADDR"} & set(variables)
    assert "Set WIREWISE_TOKEN" in capsys.readouterr().err
    variables["GLOO_SOCKET_IFNAME"] = "chosen"
    recover._prepare(HostPlace(1, ("head", ""), 1), "secret")
    assert variables["GLOO_SOCKET_IFNAME"] == "chosen" and not capsys.readouterr().err


def test_an_interface_is_that_of_an_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None


def test_a_training_of_one_host_ends_with_its_outcome(tmp_path, monkeypatch, capsys):
    outcome = Recoveries(world_size=2)
    made = {}

    class Agent:
        def __init__(self, *_, **options):
            made.update(options)

        def run(self):
            return outcome

    monkeypatch.setattr(recover, "_agent", lambda: (Agent, print))
    monkeypatch.setattr(recover, "write_json", lambda *_: None)
    script = tmp_path / "train.py"
    script.touch()
    given = GivenOptions(
        HostOptions, {"ranks_per_host": 2, "spares": 3}, frozenset({"ranks_per_host", "spares"})
    )
    changes = ResumeOptions(accept_changes="lr")
    recover.recover([str(script)], given, AgentLimits(silence_s=7.0), changes, tmp_path / "out", None)
    assert (made["ranks"], made["hosts"], made["spares"], made["silence_s"]) == (2, 1, 3, 7.0)
    assert made["environment"] == {"WIREWISE_ACCEPT_CHANGES": "lr"}
    assert made["folder"] == tmp_path / "out"
    assert "host 0: the training has come to its end" in capsys.readouterr().err


TRAIN = """
import sys, time
import torch
from torch import nn, optim, randn
from torch.utils.data import DataLoader, TensorDataset
from wirewise.runtime import recovery

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    data = TensorDataset(randn(64, 8), randn(64, 1))
    training = recovery.protect(model, optim.AdamW(model.parameters()), DataLoader(data, 4, shuffle=True), steps=60)
    for x, y in training:
        with training.step():
            time.sleep(0.05)
            nn.functional.mse_loss(training.model(x), y).backward()
    print("rank", training.rank, sum(p.double().sum() for p in model.parameters()).item())
"""


def sums(folder: Path) -> set[str]:
    """What ranks wrote last, without their number."""
    lines = [line.split() for log in folder.rglob("process-*.log") for line in log.read_text().splitlines()]
    return {line[2] for line in lines if line[:1] == ["rank"]}


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="the agents of hosts write to one folder as root")
def test_a_training_on_two_hosts_outlives_a_rank_and_a_host_but_not_the_host_of_the_store(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    said, found = {}, {}
    for name, fault in (
        ("rank", "kill:1@bucket:0#20"),
        ("host", "stop:1@bucket:0#20"),
        ("store", "stop:0@bucket:0#20"),
    ):
        folder, claim = tmp_path / name, tmp_path / f"claim-{name}"
        kind, _, step = fault.partition(":")
        own = f'[{{"act": "{kind}", "rank": {step[0]}, "point": "bucket", "step": 20, "claim": "{claim}"}}]'
        start = (
            f"export WIREWISE_FAULTS='{own}'; exec {sys.executable} -m wirewise recover --hosts 2 --silence 600 "
            f"--node-rank $WIREWISE_HOST --address 10.77.0.1 --token secret --out {folder} -- {script}"
        )
        command = [
            sys.executable,
            "-m",
            "wirewise",
            "lab",
            "run",
            "--hosts",
            "2",
            "--no-torchrun",
            "--",
            "sh",
            "-c",
        ]
        if kind == "stop":
            # The rank stands still until its agent dies, and all of its host with it.
            number = step[0]
            start = (
                f"if [ $WIREWISE_HOST = {number} ]; then (while [ ! -e {claim} ]; do sleep 0.1; done; "
                f"kill -9 $$) & fi; {start}"
            )
        done = subprocess.run([*command, start], capture_output=True, text=True, timeout=200, check=False)
        said[name], found[name] = done.stdout + done.stderr, sums(folder)
    assert "rank 1 (killed by SIGKILL)" in said["rank"] and "rank 1 (host 1 is lost)" in said["host"], said
    assert len(found["rank"]) == 1 and found["host"] == found["rank"], said
    assert not found["store"] and "host 1 does not reach the store of host 0" in said["store"], said


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_srun_says_the_place_of_each_host(tmp_path, warm_python):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    command = [
        "salloc",
        "--nodes=2",
        "--ntasks-per-node=1",
        "srun",
        str(warm_python),
        "-m",
        "wirewise",
        "recover",
    ]
    with SlurmCluster(2) as cluster:
        variables = {**os.environ, **cluster.environment, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            cluster.command([*command, "--token", "secret", "--out", str(tmp_path / "out"), "--", str(script)]),
            env=variables, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "host 1: the training has come to its end" in done.stderr
    assert len(sums(tmp_path / "out")) == 1
