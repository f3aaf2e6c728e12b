"""Goodput under random failures: against Daly's exact model, and against runs that are drawn and simulated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from tests.planners.recovery.problems import job
from wirewise.cost import Links
from wirewise.plans import MessageLog, RecoveryPlan, StageRecovery
from wirewise.sim.engine import Ops, run
from wirewise.sim.recovery import (
    Loss,
    copy_s,
    efficiency,
    group_recompute_s,
    log_overhead_s,
    recovery_figures,
    sources_of,
)
from wirewise.sim.sharing import InterfaceUse

NO_USES = InterfaceUse(
    np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), np.zeros(0)
)


@pytest.mark.parametrize("mtbf_s", [5.0, 60.0, 1e5])
def test_rolling_back_to_checkpoints_is_dalys_model(mtbf_s):
    step_s, steps, stands_s, restart_s = 0.1, 37, 0.8, 3.0
    found = efficiency(
        step_s,
        [Loss(1.0, restart_s, step_s)],
        mtbf_s,
        interval_steps=steps,
        checkpoint_s=stands_s,
    )
    whole = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((steps * step_s + stands_s) / mtbf_s)
    assert found.goodput == pytest.approx(steps * step_s / whole, rel=1e-12)
    assert found.overhead == pytest.approx(stands_s / (steps * step_s))


def test_rare_failures_cost_what_one_takes():
    losses = [Loss(0.25, 2.0, 0.0), Loss(0.75, 1.0, 0.02)]
    found = efficiency(0.1, losses, 1e9, interval_steps=11, checkpoint_s=0.0, overhead_s=0.01)
    assert found.lost_s == pytest.approx(0.25 * 2.0 + 0.75 * (1.0 + 5 * 0.02) + 0.055, rel=1e-6)
    assert found.goodput == pytest.approx(0.1 / 0.11, rel=1e-6)
    assert efficiency(0.1, losses, 1e-9, interval_steps=1, checkpoint_s=0.0).goodput == 0.0


class Draw:
    """A run with random failures, as ops of a survivor and of whoever recovers, with the clock they should show."""

    def __init__(self, seed, mtbf_s):
        self.random, self.mtbf_s = np.random.default_rng(seed), mtbf_s
        self.clock_s, self.durations, self.done = 0.0, [], 0
        self.failure_s = self.random.exponential(mtbf_s)

    def spend(self, seconds):
        """Whether so many seconds pass without a failure; else those until it are spent, and the next is drawn."""
        whole = self.clock_s + seconds <= self.failure_s
        end = self.clock_s + seconds if whole else self.failure_s
        self.durations.append(end - self.clock_s)
        self.clock_s = end
        if not whole:
            self.failure_s = end + self.random.exponential(self.mtbf_s)
        return whole

    def segment(self, step_s, losses, interval, stands_s):
        """All steps between two checkpoints, and the one that ends them."""
        shares, at = [one.share for one in losses], 0
        while at <= interval:
            begin, whole_s = self.clock_s, stands_s if at == interval else step_s
            left_s = whole_s
            while not self.spend(left_s):
                # A recovery and what was under way take their time; a failure amid them lets them begin anew.
                lost = losses[self.random.choice(len(losses), p=shares)]
                amid = self.clock_s - begin
                while not self.spend(lost.fixed_s + at * lost.step_s + amid):
                    pass
                left_s, begin = whole_s - amid, self.clock_s - amid
            at += 1
        self.done += interval

    def simulated_s(self):
        """End of the run on the event engine: each op waits for the one before, on one of two resources in turn."""
        count = len(self.durations)
        ops = Ops(
            duration=np.array(self.durations),
            gap=np.zeros(count),
            release=np.zeros(count),
            work=np.zeros(count),
            resource=np.arange(count) % 2,
            priority=np.zeros(count, np.int64),
            indptr=np.minimum(np.arange(count + 1), count - 1),
            successors=np.arange(1, count),
            slots=np.ones(2, np.int64),
        )
        return float(run(ops, NO_USES).end.max())


@pytest.mark.parametrize(
    ("mtbf_s", "losses"),
    [
        (5.0, [Loss(1.0, 0.2, 0.0)]),
        (5.0, [Loss(1.0, 1.0, 0.05)]),
        (8.0, [Loss(0.3, 0.2, 0.0), Loss(0.5, 0.4, 0.02), Loss(0.2, 1.5, 0.05)]),
    ],
)
def test_drawn_runs_have_the_goodput_of_the_formula(mtbf_s, losses):
    step_s, steps, stands_s, found = 0.05, 24, 0.1, []
    for seed in range(12):
        drawn = Draw(seed, mtbf_s)
        for _ in range(150):
            drawn.segment(step_s, losses, steps, stands_s)
        assert drawn.simulated_s() == pytest.approx(drawn.clock_s, rel=1e-9)
        found.append(drawn.done * step_s / drawn.clock_s)
    told = efficiency(step_s, losses, mtbf_s, interval_steps=steps, checkpoint_s=stands_s).goodput
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert abs(np.mean(found) - told) < 4 * error and error < 0.01


TRACE = job([0.04, 0.02, 0.03], [4e6, 2e6], ranks=[(0,), (1,), (2, 3, 4)], step_s=0.06)
LINKS = Links.uniform(5, 1e9, 1e-3)


def planned(**more):
    strategies = (("log", 0), ("log", 1), ("replica", 1))
    return RecoveryPlan(
        **{
            "world_size": 5,
            "planner": "example",
            "stages": tuple(
                StageRecovery(ranks=stage.ranks, strategy=strategy, group=group)
                for stage, (strategy, group) in zip(TRACE.stages, strategies, strict=True)
            ),
            "logs": tuple(
                MessageLog(source=a, target=b, tier="memory", bytes_per_step=4e6) for a, b in ((0, 1), (1, 0))
            ),
            "interval_steps": 21,
            "mtbf_s": 100.0,
        }
        | more
    )


def test_phases_by_hand():
    found = recovery_figures(planned(), TRACE, LINKS)
    first, second, third = found.phases
    regroup_s = TRACE.regroup_s + TRACE.spawn_s / 2 * (0.054 / 1.054)
    for one in found.phases:
        assert (one.detect_s, one.fence_s, one.resume_s) == (0.05, 0.005, 0.02)
        assert one.regroup_s == pytest.approx(regroup_s)
    assert first.restore_s == pytest.approx(1e7 / 1.5e9)
    late = 3e7 / 0.7e9 / 0.06
    assert first.recompute_s == pytest.approx((10 + late) * (0.04 + 4e6 / 1e9) + 0.03)
    # Stages 1 and 2 go back together: of 8 microbatches the first passes through both, and through the link each way.
    assert second.restore_s == pytest.approx(3e7 / 1.5e9)
    again = (0.02 + 4e6 / 1e9 + 0.03 + 4e6 / 1e9 + 7 * 0.03) / 8
    assert second.recompute_s == pytest.approx((10 + late) * again + 0.03)
    assert third.restore_s == pytest.approx(3e7 / 1e9, rel=1e-3)
    assert third.recompute_s == pytest.approx(0.03, rel=1e-3)
    assert found.mean.detect_s == pytest.approx(0.05)


def test_a_state_comes_in_stripes_from_those_who_live():
    assert copy_s(TRACE, LINKS, 2) == pytest.approx(max(1e-3 + 1.5e7 / 1e9, 3e7 / 1e9))
    two_hosts = Links.uniform(3, 1e9, 1e-3, ranks_per_host=2)
    assert sources_of((0, 1, 2), 0, two_hosts) == [2]
    one_host = Links.uniform(1, 1e9, 1e-3, ranks_per_host=3)
    assert sources_of((0, 1, 2), 1, one_host) == [0, 2]


def test_helpers_share_microbatches():
    alone = group_recompute_s(TRACE, LINKS, [0], "memory")
    exact, fast = (
        group_recompute_s(TRACE, LINKS, [0], "memory", helpers=3, exact=exact) for exact in (True, False)
    )
    assert exact == pytest.approx(0.25 * alone + 6 * 2.5e6 / 1e9)
    assert fast == pytest.approx(0.25 * alone + 2 * 0.75 * 2.5e6 / 1e9)


def test_a_group_recomputes_as_a_pipeline_or_at_once():
    both = group_recompute_s(TRACE, LINKS, [1, 2], "memory")
    one = group_recompute_s(replace(TRACE, microbatches=1), LINKS, [1, 2], "memory")
    assert one == pytest.approx(0.024 + 0.03 + 0.004) and both < one
    at_once = replace(TRACE, microbatches=1, concurrent=True)
    assert group_recompute_s(at_once, LINKS, [1, 2], "memory") == pytest.approx(0.03)


def test_logs_are_written_while_stages_wait():
    logs = planned().logs
    assert log_overhead_s(TRACE, logs) == 0.0
    slow = replace(TRACE, memory_log_bytes_per_s=1e8)
    # 40 ms to write, of which stage 0 has 20 ms and stage 1 has 40 ms to spare.
    assert log_overhead_s(slow, logs) == pytest.approx(0.02)


def test_more_spares_wait_less_for_a_new_process():
    seconds = [recovery_figures(planned(spares=n), TRACE, LINKS).mean.regroup_s for n in range(4)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] == pytest.approx(TRACE.regroup_s + TRACE.spawn_s)
