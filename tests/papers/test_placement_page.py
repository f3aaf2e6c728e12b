"""The page about placements that were carried out says what was found, and names what was not real."""

import msgspec
import pytest

from wirewise.plans import PlacementPlan
from wirewise.plans.placement import PlacedTask
from wirewise_papers.gnn_tasks.page import placement_comparison, placement_html
from wirewise_papers.gnn_tasks.records import PlacementRecord, PlacementRun

PLAN = PlacementPlan(
    world_size=2,
    planner="colocated",
    seed=0,
    tasks=(
        PlacedTask(name="g<0", kind="store", host=0),
        PlacedTask(name="w0", kind="worker", host=1, demand={"gpu": 1}),
    ),
    hosts=("host0", "host1"),
    policy="iter",
    iterations=4,
    prefetch=2,
    predicted_s=0.8,
    colocated_s=0.8,
    lower_bound_s=0.6,
    competitive_ratio=2.0,
)


def record(measured_s, simulated_s, **changes):
    one = PlacementRecord(
        method="colocated",
        policy="iter",
        simulated_s=simulated_s,
        measured_s=measured_s,
        turns_s=(measured_s,),
        error=simulated_s / measured_s - 1,
        simulated_gain=1 - simulated_s / 0.2,
        measured_gain=1 - measured_s / 0.25,
        lower_bound_s=0.1,
        crossing_bytes=3e6,
        latest={"flow": ("g<0 to w0", -0.02)},
    )
    return msgspec.structs.replace(one, **changes)


def made(**plans):
    return PlacementRun(
        emulated="executions of tasks are slept",
        links=("100mbit", "50mbit"),
        tasks=2,
        iterations=4,
        turns=1,
        plans=plans,
        fastest=min(plans, key=lambda name: plans[name].measured_s),
    )


def test_the_fastest_plan_is_told_next_to_the_first():
    found = made(colocated=record(0.25, 0.2), placed=record(0.2, 0.19))
    assert placement_comparison(found).sentence == (
        "placed is the fastest of 2 plans: 0.200 s an iteration, measured, 20.0 % less than colocated; 5.0 % was "
        "simulated."
    )


def test_a_rule_that_stays_the_fastest_is_no_gain():
    found = made(colocated=record(0.25, 0.2), placed=record(0.3, 0.19))
    assert placement_comparison(found).sentence.endswith(
        "no other plan is faster than this one, which all are compared with."
    )


def test_a_plan_alone_is_not_compared():
    told = placement_comparison(made(placed=record(0.2, 0.19))).sentence
    assert told == "placed takes 0.200 s an iteration, measured; 0.190 s were simulated."


@pytest.mark.parametrize("bound", [0.1, 0.0])
def test_names_are_escaped_and_what_was_not_real_is_said(bound):
    found = made(colocated=record(0.25, 0.2, lower_bound_s=bound))
    page = placement_html(found, {"colocated": PLAN})
    assert "g&lt;0" in page and "g<0" not in page
    assert "Emulated: executions of tasks are slept." in page
    assert "hosts at 100mbit, 50mbit" in page
    assert "What runs where: colocated" in page and "\N{MINUS SIGN}20.0 ms" in page
