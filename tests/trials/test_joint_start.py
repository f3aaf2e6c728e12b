"""Commands that are started on several hosts are known as parts of one run."""

from __future__ import annotations

import pytest

from wirewise.errors import InputError
from wirewise.trials.joint_start import joint_start

TORCHRUN = "torchrun --nnodes 2 --node-rank {host} --master-addr a --master-port 1 --nproc-per-node {ranks} t.py --lr 1"


def start(text: str, **variables: str):
    return joint_start(text.split(), variables)


@pytest.mark.parametrize(
    "command",
    [
        TORCHRUN,
        "torchrun --nnodes=2 --node_rank={host} --rdzv-endpoint a:1 t.py",
        "python -m torch.distributed.run --nnodes=1:4 --rdzv-endpoint a:1 --local-addr 10.0.0.{host} t.py",
        "accelerate launch --num_machines 2 --machine_rank {host} t.py",
    ],
)
def test_hosts_of_one_run_have_one_name(command):
    found = [start(command.format(host=host, ranks=2 + host)) for host in (0, 1)]
    assert found[0] is not None and found[0] == found[1] and found[0].reports


def test_other_runs_have_other_names():
    one = start(TORCHRUN.format(host=0, ranks=2))
    others = [TORCHRUN.replace("--lr 1", "--lr 2"), TORCHRUN.replace("--master-port 1", "--master-port 2")]
    assert all(start(other.format(host=1, ranks=2)) != one for other in others)


@pytest.mark.parametrize(
    "command", ["torchrun t.py", "torchrun --nnodes 1 t.py", "torchrun --nnodes=1:1 t.py", "python t.py"]
)
def test_a_command_of_one_host_shares_with_none(command):
    assert start(command) is None


def test_ranks_that_a_launcher_started_are_one_run_and_one_of_them_reports():
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    ranks = [start("python t.py", RANK=rank, **place) for rank in "01"]
    assert ranks[0].run == ranks[1].run and [rank.reports for rank in ranks] == [True, False]
    assert start("python t.py", RANK="0", **place | {"MASTER_PORT": "2"}).run != ranks[0].run


def test_variables_of_torchrun_count():
    assert start("torchrun t.py", PET_NNODES="2", PET_MASTER_ADDR="a") == start(
        "torchrun --node-rank 1 t.py", PET_NNODES="2", PET_MASTER_ADDR="a"
    )


@pytest.mark.parametrize("size", ["two", "-1", "0", "1.5"])
def test_a_number_of_ranks_that_is_none_is_refused_by_its_variable(size):
    with pytest.raises(InputError, match=f"WORLD_SIZE is '{size}'; expected an integer of at least 1"):
        start("python t.py", RANK="0", WORLD_SIZE=size)
    assert start("python t.py", RANK="0", WORLD_SIZE="") is None
