"""What bounds a step, on traces whose bound is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.trace.synthetic import make
from wirewise.sim.analysis import analyse
from wirewise.sim.diagnose import _bound, _bound_words, describe_change, remove_straggler
from wirewise.sim.stragglers import find_straggler
from wirewise.sim.traces import replay_trace
from wirewise.trace import align

SMALL = (4_000, 40_000, 20_000)

HEAVY = (400_000, 40_000_000, 20_000_000)


def aligned(**options):
    return align(make(**options).seen)


BOUNDS = {
    "network": {"sizes": HEAVY},
    "compute": {"sizes": SMALL},
    "straggler": {"sizes": SMALL, "slowdown": {1: 1.8}},
    "data": {"sizes": SMALL, "data_s": 0.08},
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_bound_is_named(bound):
    found = analyse(aligned(ranks=4, steps=8, **BOUNDS[bound])).diagnosis
    assert found.bound == bound
    start = {"network": "The network", "compute": "Compute", "straggler": "Rank 1", "data": "Loading data"}[
        bound
    ]
    assert found.sentence.startswith(f"{start} bounds the step")
    assert 0.15 <= found.share <= 1.0


def test_the_best_change_is_one_that_can_be_had():
    found = analyse(aligned(ranks=4, steps=8, sizes=HEAVY))
    assert found.diagnosis.best_change == "bandwidth=*:x2"
    after = next(row for row in found.what_ifs if row.change == "bandwidth=*:x2").prediction
    saved = found.report.predicted_step_s - after.predicted_step_s
    assert found.diagnosis.gain_s == pytest.approx(saved)
    assert "links at 2 times the rate" in found.diagnosis.sentence


def test_a_straggler_is_told_to_keep_up():
    trace = aligned(ranks=4, steps=8, sizes=SMALL, slowdown={1: 1.8})
    found = analyse(trace)
    assert found.diagnosis.best_change == remove_straggler(find_straggler(trace))
    assert "if it were as fast as they are" in found.diagnosis.sentence
    assert found.diagnosis.sentence.endswith("No other change tried gives more.")
    # Forward, backward and optimizer are 85 % of the 0.1 s; 1.8 times that is 0.8 * 85 ms more.
    assert found.diagnosis.gain_s == pytest.approx(0.8 * 0.085, rel=0.1)


def test_buckets_of_a_traced_job_can_be_changed():
    trace = aligned(ranks=4, steps=8, sizes=(400_000, 4_000_000, 2_000_000))
    after = {mb: replay_trace(trace, what_if=f"bucket_mb={mb}").what_if for mb in (1, 100)}
    before = replay_trace(trace)
    # A first bucket of 1 MiB closes with the second gradient of the trace; never more than as many transfers.
    assert after[1].breakdown.compute_s == pytest.approx(before.breakdown.compute_s, rel=0.02)
    assert after[1].predicted_step_s >= before.predicted_step_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("bandwidth=*:x2", "links at 2 times the rate"),
        ("bandwidth=3:x0.5", "the link of host 3 at 0.5 times the rate"),
        ("bandwidth=200mbit", "bandwidth=200mbit"),
        ("bucket_mb=25", "gradient buckets of 25 MiB"),
        ("straggler=2:x0.5", "rank 2 as fast as the others"),
        ("no_communication", "communication that takes no time"),
        ("scale=forward:x0.5", "scale=forward:x0.5"),
    ],
)
def test_changes_in_plain_words(change, said):
    assert describe_change(change) == said


@pytest.mark.parametrize(
    ("compute", "unknown", "bound", "told"),
    [
        (0.6, 0.3, "compute", "Compute bounds the step: it fills 60 % of 1.00 s."),
        (0.02, 0.98, "unknown", "Nothing recorded fills 98 % of 1.00 s."),
        (
            0.3,
            0.1,
            "wait",
            "Communication and waiting bound the step: without compute beside them they fill 60 %",
        ),
    ],
)
def test_what_fills_most_of_a_step_bounds_it_where_no_change_gives_much(compute, unknown, bound, told):
    report = SimpleNamespace(predicted_step_s=1.0, breakdown=SimpleNamespace(compute_s=compute))
    found, share = _bound(report, {}, None, unknown)
    assert found == bound
    assert _bound_words(found, share, 1.0, None).startswith(told)
