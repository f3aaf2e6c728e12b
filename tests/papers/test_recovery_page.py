"""The page of a training under failures."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.results import RecoveryRecord
from wirewise_papers.swift.page import recovery_comparison, recovery_html, recovery_timeline
from wirewise_papers.swift.records import RecoveryRun, SurvivalRecord

PREDICTED = {
    "detect": 0.01,
    "fence": 0.03,
    "regroup": 0.04,
    "restore": 0.06,
    "recompute": 0.0,
    "resume": 0.08,
}


def recovery(rank=1, at_s=3.2, **more):
    fields = {
        "strategy": "replica", "detect_s": 0.012, "fence_s": 0.04, "regroup_s": 0.05, "restore_s": 0.09,
        "resume_s": 0.08, "lost_iterations": 0, "replayed_iterations": 0, "bit_equal": True,
    }  # fmt: skip
    return RecoveryRecord(rank=rank, at_s=at_s, **(fields | more))


def way(goodput, recovered, **more):
    fields = {"meaning": "some way", "kills": len(recovered), "spared": 0, "step_s": 0.08, "repeated": 0}
    fields |= {"steps": 200, "seconds": 16 / goodput, "bit_equal": None, "resumed_s": tuple(recovered)}
    return SurvivalRecord(goodput=goodput, recovered_s=tuple(recovered), **(fields | more))


def a_run(**more):
    fields = {
        "job": "ddp", "hosts": 3, "link": "1gbit", "optimizer": "adamw", "consistency": "auto", "strategy": "auto",
        "state_bytes": 13_000_000, "kills": 2, "bit_equal": True, "step_s": 0.081, "unprotected_step_s": 0.08,
        "overhead": 0.0125, "goodput": 0.93, "baseline_goodput": 0.31, "baseline": "every 20 steps", "speedup": 24.0,
        "recoveries": (recovery(predicted_s=PREDICTED), recovery(rank=0, at_s=9.1)),
        "ways": {
            "protected": way(0.93, [0.27, 0.28], bit_equal=True),
            "checkpoint": way(0.31, [8.1, 8.4], spared=1, repeated=38),
        },
    }  # fmt: skip
    return RecoveryRun(**(fields | more))


def test_phases_add_up():
    assert recovery().recovered_s == pytest.approx(0.272)
    assert list(recovery().phases_s) == list(PREDICTED)


def test_the_page_has_every_recovery_over_its_prediction_and_all_ways():
    page = recovery_html(a_run())
    for told in (
        "1: rank 1 at",
        "2: rank 0 at",
        "regroup",
        "2 kills survived",
        "bit for bit",
        "every 20 steps",
    ):
        assert told in page.replace("\N{NO-BREAK SPACE}", " ")
    assert page.count(">predicted<") == 1
    told = recovery_comparison(a_run())
    assert [row[0] for row in told.rows] == ["protected", "checkpoint"]
    assert dict(zip(told.titles, told.rows[1], strict=True))["steps computed again"] == "38"


def test_a_state_that_differs_is_said_loudly():
    assert "DIFFERS" in recovery_comparison(a_run(bit_equal=False)).sentence


def test_a_training_without_kills_has_no_timeline():
    run = a_run(kills=0, recoveries=(), ways={"protected": way(0.99, [])})
    assert recovery_timeline(()) == "" and "No rank was killed" in recovery_comparison(run).sentence
    assert "Timeline" not in recovery_html(run)


def test_the_record_is_read_back():
    assert msgspec.json.decode(msgspec.json.encode(a_run()), type=RecoveryRun) == a_run()
