import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.harness.processes import RankError, run_ranks_as_processes

pytestmark = pytest.mark.dist


def summed(rank, scale):
    value = torch.tensor([float(rank) * scale])
    dist.all_reduce(value)
    return value.item()


def test_ranks_form_a_group():
    assert run_ranks_as_processes(2, summed, 10) == [10.0, 10.0]


def fail(rank, how):
    if rank == 1:
        if how == "raise":
            raise ValueError("spoiled")
        os._exit(7)
    time.sleep(60)


def test_a_raising_rank_is_named_and_the_others_are_ended():
    with pytest.raises(RankError, match=r"(?s)rank 1 of 2 raised.*ValueError: spoiled"):
        run_ranks_as_processes(2, fail, "raise")


def test_a_dead_rank_is_named():
    with pytest.raises(ChildProcessError, match="rank 1 of 2 died, exit code 7"):
        run_ranks_as_processes(2, fail, "exit")


@pytest.mark.slow
def test_ranks_that_do_not_end_are_named():
    with pytest.raises(TimeoutError, match="ranks 0, 1 of 2"):
        run_ranks_as_processes(2, time_out, timeout_s=5)


def time_out(rank):
    time.sleep(60)
