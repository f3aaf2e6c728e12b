import sys

import pytest

from wirewise.errors import LabError
from wirewise.hosts.launch import Rendezvous, rank_commands

PLACE = Rendezvous(1, 3, "net0", "10.77.0.1", 29511)


def test_torchrun_is_told_its_place():
    [(argv, variables)] = rank_commands(PLACE, ["train.py", "--fast"], per_host=2, launcher="torchrun")
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert set(argv[3:8]) == {
        "--nnodes=3",
        "--node-rank=1",
        "--nproc-per-node=2",
        "--master-addr=10.77.0.1",
        "--master-port=29511",
    }
    assert argv[8:] == ["train.py", "--fast"]
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("net0", "net0")


def test_direct_sets_what_torchrun_would_set():
    ranks = rank_commands(PLACE, ["train.py"], per_host=2, launcher="direct")
    assert [argv for argv, _ in ranks] == [[sys.executable, "train.py"]] * 2
    seen = [{k: v[k] for k in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")} for _, v in ranks]
    assert seen == [
        {"RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1", "WORLD_SIZE": "6"},
        {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "6"},
    ]
    assert all(v["MASTER_ADDR"] == "10.77.0.1" and v["MASTER_PORT"] == "29511" for _, v in ranks)


def test_threads_are_one_unless_the_user_says_otherwise(monkeypatch):
    for wanted in ("7", None):
        monkeypatch.setenv("OMP_NUM_THREADS", wanted) if wanted else monkeypatch.delenv("OMP_NUM_THREADS")
        [(_, variables)] = rank_commands(PLACE, ["true"], per_host=1, launcher="none")
        assert variables["OMP_NUM_THREADS"] == (wanted or "1")


@pytest.mark.parametrize(
    ("command", "per_host", "launcher", "said"),
    [
        ([], 1, "none", "empty command"),
        (["x"], 0, "direct", "got 0 processes per host; expected at least 1"),
        (["x"], 1, "mpirun", "unknown launcher 'mpirun'; expected one of torchrun, direct, none"),
    ],
)
def test_what_cannot_be_launched(command, per_host, launcher, said):
    with pytest.raises(LabError, match=said):
        rank_commands(PLACE, command, per_host=per_host, launcher=launcher)
