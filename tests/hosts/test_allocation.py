"""The place of a rank as Slurm's variables tell it."""

from __future__ import annotations

import os

import pytest

from wirewise.errors import InputError
from wirewise.hosts import allocation
from wirewise.hosts.allocation import adopt_srun_rank, current_allocation, host_names

STEP = {
    "SLURM_JOB_ID": "70", "SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "localhost",
    "SLURM_PROCID": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "3,2", "SLURM_NTASKS": "5",
}  # fmt: skip
PLACE = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def variables(monkeypatch):
    """Variables of this process, without a place and without Slurm; the test may change them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    for name in PLACE:
        kept.pop(name, None)
    monkeypatch.setattr(os, "environ", kept)
    return kept


def test_a_rank_of_srun_finds_its_place(variables):
    variables.update(STEP)
    assert adopt_srun_rank()
    assert [variables[name] for name in PLACE] == [
        "4",
        "1",
        "1",
        "5",
        "2",
        "localhost",
        str(15_000 + 70 * 16 + 2),
    ]


def test_what_a_launcher_has_set_stays(variables):
    variables.update(STEP, RANK="9", WORLD_SIZE="10")
    assert adopt_srun_rank()
    assert "LOCAL_RANK" not in variables and variables["RANK"] == "9"


@pytest.mark.parametrize(
    "told",
    [
        {},
        # A batch script has a number, and no step of its own; the step of an interactive shell is Slurm's.
        {"SLURM_PROCID": "0", "SLURM_JOB_ID": "70"},
        {**STEP, "SLURM_STEP_ID": str(0xFFFF_FFFA)},
    ],
)
def test_other_processes_are_no_ranks(variables, told):
    variables.update(told)
    assert not adopt_srun_rank() and "RANK" not in variables


@pytest.mark.parametrize(
    ("told", "tasks"), [("2", [2]), ("2(x3)", [2, 2, 2]), ("2(x2),1", [2, 2, 1]), ("3,1(x2)", [3, 1, 1])]
)
def test_tasks_of_hosts_are_read(told, tasks):
    assert allocation._tasks_of(told) == tasks


def test_an_allocation_is_told_by_its_job(variables):
    assert current_allocation() is None
    variables.update(SLURM_JOB_ID="70", SLURM_JOB_NODELIST="one")
    assert current_allocation() == ("70", ("one",), 1)
    variables.update(SLURM_NTASKS="4")
    assert current_allocation().ranks == 4
    variables.update(SLURM_NTASKS="four")
    with pytest.raises(InputError, match="SLURM_NTASKS is 'four'; expected an integer of at least 1"):
        current_allocation()


def test_hosts_that_only_slurm_can_name_need_it(variables):
    variables["PATH"] = ""
    with pytest.raises(InputError, match=r"`scontrol show hostnames h\[0-1\]` cannot be run"):
        host_names("h[0-1]")
