"""Collectives of a script when a rank is lost: they raise nothing then, and everything otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from wirewise.errors import InputError, PeerError
from wirewise.runtime.recovery.script_group import ScriptCollectives


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    ScriptCollectives.leave()
    dist.destroy_process_group()


def lost(work: Any, what: str) -> None:
    raise PeerError(f"rank 0 waited in {what}")


def test_a_collective_that_a_lost_rank_cuts_short_and_all_after_it_do_nothing(alone) -> None:
    waits: list[str] = []

    def wait(work: Any, what: str) -> None:
        waits.append(what)
        if len(waits) == 2:
            lost(work, what)

    script = ScriptCollectives("live", wait, lambda error: True)
    script.enter()
    value = torch.ones(2)
    dist.all_reduce(value)
    assert script.failure is None
    dist.all_reduce(value)
    assert "allreduce of the script" in str(script.failure)
    gathered = [torch.zeros(2)]
    dist.all_gather(gathered, value)
    objects: list[Any] = [None]
    dist.all_gather_object(objects, {"loss": 1.5})
    dist.barrier()
    work = dist.all_reduce(value, async_op=True)
    assert work.wait() and work.is_completed()
    assert torch.equal(gathered[0], value) and objects == [{"loss": 1.5}] and len(waits) == 2
    script.leave()
    dist.all_reduce(value)


def test_an_error_that_is_no_failure_of_another_rank_is_raised(alone) -> None:
    script = ScriptCollectives("live", lost, lambda error: False)
    script.enter()
    with pytest.raises(PeerError, match="allreduce of the script"):
        dist.all_reduce(torch.ones(1))
    assert script.failure is None


def test_a_replacement_takes_no_part_in_what_came_before_the_loop(alone) -> None:
    ScriptCollectives("alone", lost, lambda error: True).enter()
    dist.barrier()
    with pytest.raises(InputError, match=r"the script calls broadcast of torch\.distributed before its loop"):
        dist.broadcast(torch.ones(1), 0)


def test_after_a_failed_block_collectives_meet_nobody(alone) -> None:
    ScriptCollectives("muted", lost, lambda error: True).enter()
    value = torch.ones(3)
    dist.all_reduce(value)
    assert value.tolist() == [1.0, 1.0, 1.0]
