"""Causes that were planted into recorded steps are named."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn

from tests.harness.processes import run_ranks_as_processes
from tests.harness.tiers import slow
from tests.trace.synthetic import make
from wirewise.profile import Tracer
from wirewise.sim.analysis import analyse
from wirewise.sim.stragglers import compute_seconds, find_straggler, find_uneven, processor_seconds
from wirewise.trace import align, read

SMALL = (4_000, 40_000, 20_000)


def told(trace):
    return analyse(trace).diagnosis


def with_processor(trace, times):
    """The trace with `times(rank)`, seconds of each step with a processor and waiting for one."""
    for rank, recorded in enumerate(trace.ranks):
        cpu_s, preempted_s = times(rank)
        recorded.ops = [
            replace(op, cpu_s=cpu_s, preempted_s=preempted_s) if op.kind == "step" else op
            for op in recorded.ops
        ]
    return trace


def slow_rank():
    return align(make(ranks=4, steps=8, sizes=SMALL, slowdown={1: 1.8}).seen)


@pytest.mark.parametrize(
    ("times", "cause", "words"),
    [
        (lambda rank: (0.085 * (1.8 if rank == 1 else 1), 0.001), "compute", "it computes 1.7"),
        (
            lambda rank: (0.085, 0.07 if rank == 1 else 0.001),
            "preempted",
            "waits 70.0 ms of a step for a processor",
        ),
        (lambda rank: (0.085, 0.001), "blocked", "its script sleeps, reads or waits for a lock"),
    ],
)
def test_why_a_rank_takes_longer(times, cause, words):
    found = told(with_processor(slow_rank(), times))
    assert (found.bound, found.straggler_rank, found.straggler_cause) == ("straggler", 1, cause)
    assert found.sentence.startswith("Rank 1 bounds the step") and words in found.sentence


def test_without_processor_times_a_slow_rank_computes():
    found = told(slow_rank())
    assert found.straggler_cause == "compute" and found.preempted_share is None


def test_ranks_that_all_wait_for_processors_are_told_so():
    trace = with_processor(align(make(ranks=4, steps=8, sizes=SMALL).seen), lambda rank: (0.06, 0.03))
    found = told(trace)
    assert found.preempted_share == pytest.approx(0.34, abs=0.02)
    assert "of it for a processor, which others use" in found.sentence


def turns(rank: int, folder: str) -> None:
    """Train with samples that are long on one rank in each step, another one in the next."""
    work = nn.Linear(256, 256)
    with Tracer(folder, warmup=1, steps=None, round_trips=10) as tracer:
        for step in range(13):
            until = time.thread_time() + (0.06 if step % 2 == rank else 0.01)
            while time.thread_time() < until:
                work(torch.ones(8, 256))
            dist.all_reduce(torch.ones(10))
            tracer.step()


def blocked(rank: int, folder: str) -> None:
    """Rank 1 sleeps in each step, as a script that reads from a slow disk does."""
    with Tracer(folder, warmup=1, steps=None, round_trips=10) as tracer:
        for _ in range(9):
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
            time.sleep(0.06 * rank)
            dist.all_reduce(torch.ones(10))
            tracer.step()


def busy(rank: int, folder: str) -> None:
    """Rank 1 computes five times as much."""
    with Tracer(folder, warmup=1, steps=None, round_trips=10) as tracer:
        for _ in range(9):
            until = time.thread_time() + 0.02 * (1 + 4 * rank)
            while time.thread_time() < until:
                pass
            dist.all_reduce(torch.ones(10))
            tracer.step()


def preempted(rank: int, folder: str) -> None:
    """Rank 1 shares its processor with three other processes."""
    children = []
    if rank == 1:
        one = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(0, one)
        for _ in range(3):
            if (child := os.fork()) == 0:
                while os.getppid() != 1:
                    pass
                os._exit(0)
            children.append(child)
    dist.barrier()
    try:
        with Tracer(folder, warmup=1, steps=None, round_trips=10) as tracer:
            for _ in range(9):
                until = time.thread_time() + 0.02
                while time.thread_time() < until:
                    pass
                dist.all_reduce(torch.ones(10))
                tracer.step()
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("job", "cause"),
    [slow((busy, "compute")), (blocked, "blocked")],
)
def test_causes_of_real_ranks(job, cause, tmp_path):
    run_ranks_as_processes(2, job, str(tmp_path))
    found = find_straggler(align(read(tmp_path)))
    assert found is not None and (found.rank, found.cause) == (1, cause)


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_whose_processor_others_use_waits_for_it(tmp_path):
    run_ranks_as_processes(2, preempted, str(tmp_path))
    spent = processor_seconds(align(read(tmp_path)))
    assert spent is not None
    cpu, waited = spent
    assert cpu == pytest.approx([0.02, 0.02], abs=0.01) and waited[1] > cpu[1]


@pytest.mark.dist
def test_ranks_that_are_slow_in_turns_are_named(tmp_path):
    run_ranks_as_processes(2, turns, str(tmp_path))
    found = told(align(read(tmp_path)))
    assert found.straggler_rank is None and found.bound == "imbalance"
    assert {rank for rank, _ in found.uneven} == {0, 1}
    assert found.sentence.startswith("Imbalance bounds the step: ranks compute longest in turns (rank")


def test_ranks_alike_are_not_uneven():
    trace = align(make(ranks=4, steps=8, sizes=SMALL, jitter=0.01).seen)
    assert not find_uneven(compute_seconds(trace))
