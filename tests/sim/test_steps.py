"""Replay of recorded steps: the records come from simulated jobs, so the right answers are known."""

import numpy as np
import pytest

from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.sim import replay, whatif
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.sim.steps import RecordedStep, replay_steps

MIB = 2**20
LINKS = Links.uniform(2, 20 * MIB, 1e-3)


def job(random, ranks=2, jitter=0.2):
    layers = [LayerCost(f"{i}", 0.01, 0.02, 0.5 * MIB) for i in range(6)]
    slow = 1 + jitter * random.random(ranks)
    return data_parallel_step(layers, range(ranks), bucket_bytes=MIB, optimizer_s=0.01, slowdown=slow)


def record(count=30, *, links=LINKS, interference=1.0, idle=0.002, seed=0, numbers=None):
    """Steps of a job that goes on from step to step, on the given links."""
    random = np.random.default_rng(seed)
    begin, found = np.array([7.0, 7.003]), []
    for place in range(count):
        result = replay(job(random), links, interference=interference, begin_s=begin)
        end = result.finish_s.copy()
        number = place + 5 if numbers is None else numbers[place]
        # The trace has the durations with interference.
        found.append(RecordedStep(number, result.dataflow, begin, end))
        begin = end + idle * random.random(2)
    return found


def test_self_replay_is_exact():
    report = replay_steps(record(), LINKS)
    assert report.error == pytest.approx(0.0, abs=1e-9)
    for step in report.per_step:
        assert step.predicted_s == pytest.approx(step.measured_s)
    parts = report.breakdown
    assert parts.compute_s + parts.exposed_communication_s + parts.wait_s == pytest.approx(
        report.predicted_step_s
    )
    assert report.p50_s <= report.p95_s
    assert report.ci95_s[0] < report.predicted_step_s < report.ci95_s[1]
    assert report.error_ci95 == pytest.approx((0.0, 0.0), abs=1e-9)
    assert report.critical_path[-1].kind == "optimizer"


def test_steps_that_do_not_follow_begin_as_measured():
    report = replay_steps(record(10, numbers=range(0, 100, 10)), LINKS)
    assert report.error == pytest.approx(0.0, abs=1e-9)


def test_wrong_links_show_as_error():
    report = replay_steps(record(), LINKS.scaled(4.0))
    assert report.error < -0.05
    assert report.error_ci95[1] < 0


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_bandwidth_against_a_job_on_other_links(factor):
    truth = replay_steps(record(links=LINKS.scaled(factor)), LINKS.scaled(factor)).measured_step_s
    report = replay_steps(record(), LINKS, what_if=whatif.parse(f"bandwidth=*:x{factor}"))
    assert report.what_if is not None
    assert report.what_if.predicted_step_s == pytest.approx(truth, rel=0.01)
    assert report.measured_step_s != pytest.approx(truth, rel=0.05)


def test_interference_is_taken_out_before_and_put_in_after_a_change():
    recorded = record(interference=1.4)
    assert replay_steps(recorded, LINKS, interference=1.4).error == pytest.approx(0.0, abs=2e-3)
    alone = whatif.parse("no_communication")
    found = replay_steps(recorded, LINKS, interference=1.4, what_if=alone).what_if
    without = replay_steps(recorded, LINKS, what_if=alone).what_if
    truth = replay_steps(record(), LINKS, what_if=alone).what_if
    assert found.predicted_step_s == pytest.approx(truth.predicted_step_s, rel=2e-3)
    assert without.predicted_step_s > truth.predicted_step_s * 1.01


def test_more_ranks_draw_their_skew_from_all_steps():
    report = replay_steps(record(), LINKS, what_if=whatif.parse("ranks=6"))
    again = replay_steps(record(), LINKS, what_if=whatif.parse("ranks=6"))
    assert report.what_if.ranks == 6
    assert report.what_if.predicted_step_s == again.what_if.predicted_step_s
    assert report.what_if.predicted_step_s > report.predicted_step_s


def test_outliers_are_reported_and_left_out():
    before = {s.step for s in replay_steps(record(20), LINKS).per_step if s.outlier}
    assert 13 not in before
    steps = record(20)
    stalled = steps[8]
    flow = stalled.dataflow
    flow.duration_s[0] += 5.0
    shifted = [s._replace(begin_s=s.begin_s + 5.0, end_s=s.end_s + 5.0) for s in steps[9:]]
    steps = [*steps[:8], stalled._replace(end_s=stalled.end_s + 5.0), *shifted]
    report = replay_steps(steps, LINKS)
    assert {s.step for s in report.per_step if s.outlier} == before | {13}
    assert report.steps == 20 - len(before) - 1
    assert report.measured_step_s < 1.0


def test_steps_of_different_jobs():
    with pytest.raises(InputError, match="got 0 steps"):
        replay_steps([], LINKS)
    first, second = record(2)
    other = job(np.random.default_rng(0), ranks=3)
    with pytest.raises(InputError, match="expected steps of one job"):
        replay_steps([first, second._replace(dataflow=other)], LINKS)
