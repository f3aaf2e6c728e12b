from __future__ import annotations

import re

import pytest

from tests.sim.pipeline_jobs import chain, links
from wirewise.planners import PLANNERS
from wirewise.plans import StagePlan
from wirewise.report.timetable_picture import (
    bars_of,
    measured_bars,
    simulate_plan,
    timetable_chart,
    timetable_section,
)
from wirewise.results import MeasuredPass


def planned(method, **more):
    given = {"batch": 8, "stages": 4, "microbatch_size": 1, **more}
    return PLANNERS["stages"][method](chain(4, 0.25, parameter_bytes=10.0), links(4), **given)


@pytest.mark.parametrize("method", ["1f1b", "eager-split", "two-bw"])
def test_every_pass_and_message_is_drawn(method):
    plan = planned(method)
    drawn = timetable_section(plan)
    updates, backward = plan.weight_versions, 2 if method == "eager-split" else 1
    assert drawn.count('class="bar ') == updates * 4 * 8 * (1 + backward)
    assert drawn.count('class="hop c0"') == drawn.count('class="hop p-wire"') == updates * 3 * 8
    assert "stage 3 on rank 3, forward: microbatch 7 of stage 3, simulated 1.00 s at " in drawn
    assert ("weight gradient" in drawn) == (method == "eager-split")
    assert ("every second update pale" in drawn) == (method == "two-bw")


def test_bars_stand_at_their_times():
    plan = planned("1f1b")
    assert plan.pass_s == ((1.0, 2.0, 1.0),) * 4 and plan.message_s == (0.25,) * 3
    run = simulate_plan(plan)
    bars = bars_of(run)
    assert max(bar.end_s for bar in bars) == pytest.approx(plan.predicted_s)
    last = next(b for b in bars if (b.position, b.phase, b.microbatch) == (3, "forward", 0))
    assert last.start_s == pytest.approx(3 * 1.25)
    chart = timetable_chart([str(n) for n in range(4)], bars)
    boxes = [
        (float(x), float(w))
        for x, w in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*class="bar', chart)
    ]
    assert len(boxes) == 64 and max(x + w for x, w in boxes) <= 988.0


def carried_out(plan, updates, late_s):
    """Passes as a run would have them that is late by so much."""
    kinds = {"forward": "F", "backward": "B", "weight gradient": "W"}
    return [
        MeasuredPass(
            kinds[bar.phase], bar.stage, bar.update, bar.microbatch, bar.start_s + late_s, bar.end_s + late_s
        )
        for bar in bars_of(simulate_plan(plan, updates))
        if bar.phase in kinds
    ]


def test_measured_passes_lie_below_predicted_ones():
    """One update of several, from its first pass on."""
    plan = planned("1f1b")
    passes = carried_out(plan, 3, 0.1)
    drawn = timetable_section(plan, passes)
    assert drawn.count('class="bar ') == 128 and "above predicted, below measured" in drawn
    assert "microbatch 0 of stage 0, measured 1.00 s at 0 s" in drawn
    first = measured_bars(plan, passes)
    assert min(bar.start_s for bar in first) == 0.0 and {bar.update for bar in first} == {0}
    assert max(bar.end_s for bar in first) == pytest.approx(plan.predicted_s)


def test_measured_updates_without_a_flush_are_those_that_are_predicted():
    """Passes of the next update, which lie among them, are drawn on both sides."""
    plan = planned("two-bw")
    passes = carried_out(plan, 3, 0.1)
    drawn = timetable_section(plan, passes)
    below = drawn.count(", measured ")
    assert below == drawn.count(", simulated ") == drawn.count('class="bar ') / 2 > 2 * 4 * 8 * 2
    assert {bar.update for bar in measured_bars(plan, passes)} == {0, 1, 2}


def test_a_plan_without_seconds_shows_its_order():
    plan = StagePlan.from_cuts(
        [f"m{n}" for n in range(4)], [1, 2, 3], style="interleaved", microbatches=2, replicas=2
    )
    drawn = timetable_section(plan)
    assert "Only the order is the plan's" in drawn and "One of 2 replicas is shown" in drawn
    assert "stages 0, 2 on rank 0" in drawn and " s at " not in drawn
    assert "activations" not in drawn


def test_nothing_is_no_picture():
    assert timetable_chart(["a"], []) == ""
