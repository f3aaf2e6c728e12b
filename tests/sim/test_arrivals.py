"""Waiting for ranks that come late is told apart from what transfers take."""

import pytest

from tests.trace.profiled import Profiled, info
from wirewise.sim.arrivals import late_ranks
from wirewise.sim.bounds import verdict_of
from wirewise.sim.usage import collectives_of, rank_uses
from wirewise.trace import open_trace

RANKS, STEPS, TRANSFER = 3, 6, 1000


def job(tmp_path, lateness, *, transfer=TRANSFER, clock=lambda rank: 0, data=lambda rank, step: 0):
    """Ranks that compute, come `lateness(rank, step)` us late to an all-reduce, and compute again."""
    files = []
    for rank in range(RANKS):
        made = Profiled(info(rank, RANKS))
        for step in range(STEPS):
            at = 10_000 * step + clock(rank)
            late, last = lateness(rank, step), max(lateness(other, step) for other in range(RANKS))
            made.step(step, at, 10_000)
            if data(rank, step):
                made.span(
                    "user_annotation", "enumerate(DataLoader)#_SingleProcess.__next__", at, data(rank, step)
                )
            made.host("aten::mm", at + data(rank, step), 9_000 - data(rank, step))
            made.kernel("gemm", at + 100 + late, 2000, launched=at + 50 + late)
            begin, end = at + 2200 + late, at + 2200 + last + transfer
            made.older_collective(
                "nccl:all_reduce", "ncclDevKernel_AllReduce", begin, end - begin, launched=begin - 40
            )
            made.kernel("gemm", end + 10, 2000, launched=end - 20)
        files.append(made.write(tmp_path / f"rank-{rank}.json"))
    return open_trace(files, partial=True)


def verdict(trace):
    return verdict_of(rank_uses(trace), late_ranks(trace.ranks, collectives_of(trace)))


@pytest.mark.parametrize(
    "clock", [lambda rank: 0, lambda rank: 7_000_000 * rank], ids=["one clock", "three clocks"]
)
def test_one_late_rank_is_named(tmp_path, clock):
    trace = job(tmp_path, lambda rank, step: 3000 * (rank == 1), clock=clock)
    uses = rank_uses(trace)
    assert [round(use.late_wait_s * 1e6) for use in uses] == [3000, 0, 3000]
    assert [round((use.communication_s - use.late_wait_s) * 1e6) for use in uses] == [TRANSFER] * RANKS
    found = verdict(trace)
    assert (
        found.bound == "imbalance"
        and "for rank 1 (100 %)" in found.sentence
        and "in turns" not in found.sentence
    )


def test_ranks_that_are_late_in_turns_are_named(tmp_path):
    found = verdict(job(tmp_path, lambda rank, step: 4000 * (step % RANKS == rank)))
    assert found.bound == "imbalance" and "in turns for rank" in found.sentence
    assert all(f"rank {rank} (" in found.sentence for rank in range(RANKS))


def test_a_slow_network_is_no_imbalance(tmp_path):
    found = verdict(job(tmp_path, lambda rank, step: 10 * rank, transfer=5000))
    assert found.bound == "network"


def test_a_slow_loader_is_named(tmp_path):
    found = verdict(job(tmp_path, lambda rank, step: 4500, data=lambda rank, step: 4500))
    assert found.bound == "data" and found.sentence.startswith("Loading data bounds the step")


def test_one_rank_alone_tells_no_lateness(tmp_path):
    job(tmp_path, lambda rank, step: 3000 * (rank == 1))
    (use,) = rank_uses(open_trace([tmp_path / "rank-0.json"], partial=True))
    assert use.late_wait_s == 0 and use.communication_s == pytest.approx(4e-3)


def test_collectives_of_unlike_sizes_are_not_compared(tmp_path):
    trace = job(tmp_path, lambda rank, step: 3000 * (rank == 1))
    for op in trace.ranks[1].ops:
        if op.kind == "communication":
            trace.ranks[1].ops[trace.ranks[1].ops.index(op)] = type(op)(
                **{name: getattr(op, name) for name in op.__struct_fields__} | {"size_bytes": 1}
            )
    assert not late_ranks(trace.ranks, collectives_of(trace))
