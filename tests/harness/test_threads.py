import threading

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads


def summed(rank, group, store, scale):
    value = torch.tensor([float(rank) * scale])
    group.allreduce([value]).wait()
    return value.item()


def test_ranks_form_a_group():
    assert run_ranks_as_threads(3, summed, 10) == [30.0] * 3


def fail_on_one(rank, group, store, never):
    if rank == 1:
        raise ValueError("spoiled")
    never.wait(5)


def test_first_error_is_raised_with_its_rank_while_others_wait():
    never = threading.Event()
    with pytest.raises(ValueError, match="spoiled") as caught:
        run_ranks_as_threads(2, fail_on_one, never)
    never.set()
    assert caught.value.__notes__ == ["raised on rank 1 of 2"]


def test_a_rank_that_does_not_end_is_named():
    never = threading.Event()
    with pytest.raises(TimeoutError, match="rank-0 of 2"):
        run_ranks_as_threads(2, lambda rank, *_: rank or never.wait(9), timeout_s=2)
    never.set()
