"""`wirewise trace show` names a cause that was planted, in traces of processors and of GPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.sim.test_arrivals import RANKS
from tests.sim.test_arrivals import job as device_job
from tests.sim.test_causes import SMALL, with_processor
from tests.trace.profiled import Profiled, info
from tests.trace.synthetic import make
from wirewise.cli.main import app
from wirewise.trace import write_trace


def first_line(*sources) -> str:
    result = CliRunner().invoke(app, ["trace", "show", *map(str, sources)])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0]


def slow(rank_1: float = 1.8):
    return make(ranks=4, steps=8, sizes=SMALL, slowdown={1: rank_1}).seen


def in_turns():
    """Batches that are long on one rank in each step, another one in the next."""
    return make(ranks=4, steps=12, sizes=SMALL, jitter=0.02, slow_in_turns=3.0).seen


def busy_rank():
    return with_processor(slow(), lambda rank: (0.085 * (1.8 if rank == 1 else 1), 0.001))


def preempted_rank():
    return with_processor(slow(), lambda rank: (0.085, 0.07 if rank == 1 else 0.001))


def late_rank():
    """The rank with a script that sleeps."""
    return with_processor(slow(), lambda rank: (0.085, 0.001))


def slow_loader():
    return make(ranks=4, steps=8, sizes=SMALL, data_s=0.1).seen


def slow_link():
    """All ranks send less fast, and the header of one says that its link is a tenth of the others'."""
    trace = make(ranks=4, steps=8, bytes_per_s=50e6).seen
    for recorded in trace.ranks:
        rate = 12.5e6 if recorded.header.rank == 2 else 125e6
        recorded.header = replace(recorded.header, link_bytes_per_s=rate)
    return trace


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (slow_loader, ("Loading data bounds the step",)),
        (busy_rank, ("Rank 1 bounds the step: it computes 1.",)),
        (
            preempted_rank,
            ("Rank 1 bounds the step", "of a step for a processor, which others on its machine use"),
        ),
        (late_rank, ("Rank 1 bounds the step", "its script sleeps, reads or waits for a lock")),
        (in_turns, ("Imbalance bounds the step: ranks compute longest in turns",)),
        (slow_link, ("The network bounds the step", "The slowest link is that of host host2.")),
    ],
)
def test_a_cause_in_a_trace_of_processors_is_named(plant, words, tmp_path):
    write_trace(plant(), tmp_path / "run")
    said = first_line(tmp_path / "run")
    assert all(word in said for word in words), said


def device_files(folder, **plant):
    device_job(folder, plant.pop("lateness", lambda rank, step: 0), **plant)
    return [folder / f"rank-{rank}.json" for rank in range(RANKS)]


def host_bound(folder):
    """Kernels of a tenth of a step each, launched when the host comes to them."""
    made = Profiled(info(0, 1))
    for step in range(4):
        at = 10_000 * step
        made.step(step, at, 10_000)
        made.host("aten::mm", at, 10_000)
        for begin in range(at, at + 10_000, 1000):
            made.kernel("gemm", begin + 300, 100, launched=begin + 290)
    return [made.write(folder / "host.json")]


def preempted_host(folder):
    """Rank 1's process has no processor for a while, so that its kernels are launched late."""
    return device_files(folder, lateness=lambda rank, step: (rank == 1) * (2500 + 300 * (step % 3)))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (
            lambda folder: device_files(folder, lateness=lambda *_: 4500, data=lambda *_: 4500),
            ("Loading data bounds the step",),
        ),
        (
            lambda folder: device_files(folder, lateness=lambda rank, step: 3000 * (rank == 1)),
            ("Imbalance bounds the step", "for rank 1 (100 %)"),
        ),
        (
            lambda folder: device_files(folder, lateness=lambda rank, step: 4000 * (step % RANKS == rank)),
            ("Imbalance bounds the step", "in turns for rank"),
        ),
        (
            lambda folder: device_files(folder, transfer=5000),
            ("Communication bounds the step: nothing runs beside it",),
        ),
        (host_bound, ("The host bounds the step: kernels are launched too late", "CUDA graphs")),
        (preempted_host, ("Imbalance bounds the step", "for rank 1 (100 %)", "others on their machine")),
    ],
    ids=["slow loader", "late rank", "ragged batches", "slow link", "host-bound", "preempted rank"],
)
def test_a_cause_in_traces_of_gpus_is_named(plant, words, tmp_path):
    said = first_line(*plant(tmp_path))
    assert all(word in said for word in words), said


def test_a_rank_whose_gpu_computes_longer_is_named(tmp_path):
    files = []
    for rank in range(RANKS):
        made = Profiled(info(rank, RANKS))
        for step in range(6):
            at, mine, last = 10_000 * step, 2000 + 3000 * (rank == 1), 5000
            made.step(step, at, 10_000)
            made.host("aten::mm", at, 9_000)
            made.kernel("gemm", at + 100, mine, launched=at + 50)
            begin = at + 200 + mine
            made.older_collective(
                "nccl:all_reduce",
                "ncclDevKernel_AllReduce",
                begin,
                200 + last + 1000 + at - begin,
                launched=begin - 40,
            )
        files.append(made.write(tmp_path / f"rank-{rank}.json"))
    said = first_line(*files)
    assert "Imbalance bounds the step" in said and "for rank 1 (100 %)" in said, said
