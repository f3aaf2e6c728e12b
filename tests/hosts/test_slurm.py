"""Ranks on hosts of an allocation: what they are told, what is heard of them, and how they end."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.harness.slurm import in_allocation
from wirewise.errors import InputError, LabError
from wirewise.hosts import slurm
from wirewise.hosts.slurm import SlurmHosts, SlurmJob, disagreement
from wirewise.hosts.slurm_host import host_facts

SRUN = r"""
import sys, time
for line in sys.argv[1].split("|"):
    print(line, flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
"""Says what srun would say, waits, and ends."""


def job_of(said: str, seconds: float = 0.0, code: int = 0, **options: object) -> SlurmJob:
    """A job of two hosts with two processes each."""
    return SlurmJob([sys.executable, "-c", SRUN, said, str(seconds), str(code)], ["a", "b"], 2, **options)


def test_lines_are_told_apart_by_their_process(tmp_path):
    heard = []
    job = job_of("0: one|2: two| 3: 3: three|3: ", folder=tmp_path, listener=lambda *told: heard.append(told))
    result = job.wait()
    assert (result.ok, result.hosts, result.first_failed) == (True, [0, 0, 1, 1], None)
    assert result.tails == [["one"], [], ["two"], ["3: three", ""]]
    assert heard == [(0, "one"), (1, "two"), (1, "3: three"), (1, "")]
    assert (tmp_path / "host-1.log").read_text() == "two\n3: three\n\n"


@pytest.mark.parametrize(
    ("said", "codes", "first"),
    [
        ("srun: error: b: task 3: Exited with exit code 7", [0, 0, 0, 7], 3),
        (
            "srun: error: a: tasks 0-1: Killed|srun: error: b: task 2: Exited with exit code 1",
            [-9, -9, 1, 0],
            0,
        ),
        ("srun: error: b: tasks 2,3: Segmentation fault (core dumped)", [0, 0, -11, -11], 2),
        ("srun: error: Node failure on b", [0, 0, -9, -9], 2),
        ("srun: error: Unable to create step for job 1: Invalid node name", [1, 0, 0, 0], None),
    ],
)
def test_who_failed_is_read_from_what_srun_says(said, codes, first):
    result = job_of(said, code=1).wait()
    assert (result.exit_codes, result.first_failed, result.exit_code) == (
        codes, first, next(code if code > 0 else 128 - code for code in codes[first or 0:] if code),
    )  # fmt: skip
    if first is None:
        assert result.tails[0] == [said]


def test_others_have_a_while_after_one_has_failed():
    start_s = time.monotonic()
    result = job_of("srun: error: b: task 3: Exited with exit code 7", 30.0, grace_s=0.1).wait()
    assert not result.ok and result.exit_codes[3] == 7
    assert time.monotonic() - start_s < 30.0


def test_hosts_with_other_versions_are_named():
    own = host_facts()
    assert disagreement([own, own]) is None
    other = msgspec.structs.replace(own, host="h1", python="3.9.2")
    told = disagreement([own, other])
    assert f"host h1 has Python 3.9.2 with wirewise {own.wirewise}; expected Python {own.python}" in told
    assert "wirewise 9.9" in disagreement([msgspec.structs.replace(own, wirewise="9.9")])


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, r"no allocation of Slurm \(SLURM_JOB_ID is not set\); start it by `salloc"),
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "h0"},
            r"allocation 7 has one host, h0.*\(-N2\), or say",
        ),
    ],
)
def test_fewer_than_two_hosts_are_refused(monkeypatch, variables, told):
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=told):
        SlurmHosts()


def test_more_hosts_than_there_are_are_refused(monkeypatch):
    monkeypatch.setattr(slurm, "needed_allocation", lambda: slurm.Allocation("7", ("h0", "h1"), 2))
    with pytest.raises(InputError, match=r"got 3 hosts, and allocation 7 has 2: h0, h1; .*\(-N3\)"):
        SlurmHosts(3)
    hosts = SlurmHosts()
    for wrong, told in (
        ({"launcher": "mpirun"}, "unknown launcher 'mpirun'"),
        ({"command": [["a"], ["b"], ["c"]]}, "got commands for 3 hosts; expected 2, or one command for all"),
        ({"command": []}, "got an empty command"),
    ):
        with pytest.raises(LabError, match=told):
            hosts.launch(**{"command": ["x"], **wrong})


def main(local: str) -> None:
    """On the head: start ranks in several ways, and say in one line what came back."""
    found, heard = {}, []
    with SlurmHosts() as hosts:
        names = ("RANK", "LOCAL_RANK", "GLOO_SOCKET_IFNAME", "MASTER_ADDR")
        words = f"import os; print(*(os.environ[name] for name in {names}))"
        hosts.run(
            ["-c", words], processes_per_host=2, launcher="direct", listener=lambda *told: heard.append(told)
        )
        found["heard"] = sorted(heard)
        fails = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(3); time.sleep(100)"
        result = hosts.run(["-c", fails], launcher="direct", grace_s=0.1)
        found["codes"] = [result.exit_code, result.first_failed]
        result = hosts.run([["sh", "-c", f"exit {n}"] for n in (0, 5)], launcher="none")
        found["none"] = result.exit_codes
        folder = Path(local) / "only-here"
        folder.mkdir()
        result = hosts.run(["-c", ""], launcher="direct", folder=folder)
        found["unseen"] = [*result.tails[0], *result.tails[1]]
        result = hosts.run(["-c", ""], processes_per_host=4, launcher="direct")
        found["too many"] = result.tails[0]
    sys.stdout.write(json.dumps(found) + "\n")


@pytest.mark.slurm
@pytest.mark.slow
def test_e1_ranks_are_started_heard_and_ended_on_hosts(slurm_cluster, warm_python):
    program = "import sys; from tests.hosts import test_slurm; test_slurm.main(sys.argv[1])"
    local = slurm_cluster.folder / "local"
    told = in_allocation(slurm_cluster, 2, "-c", program, local, python=warm_python, per_host=2)
    found = json.loads(told.splitlines()[-1])
    assert found["heard"] == [
        [0, "0 0 net0 h0"], [0, "1 1 net0 h0"], [1, "2 0 net0 h0"], [1, "3 1 net0 h0"]
    ]  # fmt: skip
    assert (found["codes"], found["none"]) == ([3, 1], [0, 5])
    assert any("host h0 does not see the folder" in line for line in found["unseen"])
    assert any("More processors requested than permitted" in line for line in found["too many"])
