"""What collectives in flight take from back-propagation."""

import threading

import pytest

from tests.harness.threads import run_ranks_as_threads
from wirewise.cost.gradients import GradientCosts
from wirewise.runtime.transport import Transport
from wirewise.trials.contention import measure_delays

ALL_REDUCE = ((64, 0.01), (4_000, 0.04), (40_000, 0.08), (400_000, 10.0))
ALL_GATHER = ((64, 0.02), (4_000, 0.2), (40_000, 0.4))
DIVISIBLE = ((63, 0.02), (4_000, 0.02))
COSTS = GradientCosts(
    device="cpu",
    codecs={},
    ranks=2,
    schemes={"all_reduce": ALL_REDUCE, "all_gather": ALL_GATHER, "divisible": DIVISIBLE},
)


class Started:
    """A back-propagation of 0.1 s that takes longer on one rank while other threads use its process group."""

    def __init__(self, group, beside_s: float) -> None:
        self._group, self._beside_s = group, beside_s

    def __call__(self, begin) -> float:
        before = self._group.used
        begin().result()
        return 0.1 if self._group.used == before else self._beside_s


class Counting:
    """A process group that counts what was started on a thread of its own."""

    def __init__(self, group) -> None:
        self._group, self._thread, self.used = group, threading.get_ident(), 0

    def __getattr__(self, name):
        call = getattr(self._group, name)
        if name not in ("allreduce", "_allgather_base", "alltoall_base"):
            return call

        def counted(*args):
            self.used += threading.get_ident() != self._thread
            return call(*args)

        return counted


def delays(slowest_s):
    def work(rank, group, store):
        counting = Counting(group)
        transport = Transport(counting, store=store)
        return measure_delays(COSTS, transport, Started(counting, slowest_s if rank else 0.1))

    return run_ranks_as_threads(2, work)


def test_a_collective_takes_the_share_by_which_the_slowest_rank_is_longer():
    first, second = delays(0.2)
    assert first == second and list(first) == ["all_reduce", "all_gather", "divisible"]
    # Collectives that outlast back-propagation say nothing more; of fewer than two sizes no table can be made.
    assert first["all_reduce"] == tuple((size, pytest.approx(s / 2)) for size, s in ALL_REDUCE[:3])
    assert first["all_gather"] == tuple((size, pytest.approx(s / 2)) for size, s in ALL_GATHER[:2])
    assert first["divisible"] == tuple((size, pytest.approx(s / 2)) for size, s in DIVISIBLE)


def test_back_propagation_that_is_not_slower_is_not_delayed():
    for table in delays(0.09)[0].values():
        assert {seconds for _, seconds in table} == {0.0}
