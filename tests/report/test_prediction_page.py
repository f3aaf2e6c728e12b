"""The page of a prediction: for every family, every span drawn, nothing loaded."""

import re

import pytest

from tests.conformance.instances import CASES, GRAINS
from tests.conformance.test_predict import predicted
from wirewise.plans import FusionPlan
from wirewise.report.prediction_page import prediction_html
from wirewise.sim import Span, Timeline
from wirewise.sim.prediction import prediction_of

FIRST = [next(case for case in CASES if case.grain == grain) for grain in GRAINS]


@pytest.mark.sweep
@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.grain)
def test_a_plan_of_every_family_is_drawn(case):
    found, plan = predicted(case), case.plan()
    page = prediction_html(found, plan)
    assert f"under the {plan.family} plan by {plan.planner}" in page and "simulated, not measured" in page
    assert all(f"</i>{phase}</li>" in page and f"<td>{phase}</td>" in page for phase in found.phases_s)
    assert page.count('class="p-') > 0 and page.count("<svg") == 1
    assert not re.search(r"(src|href)=|https?://(?!www.w3.org)", page)


def predict(*spans, ranks, unit="step"):
    plan = FusionPlan(world_size=ranks, planner="<b>", buckets=())
    timeline = Timeline(
        spans=tuple(Span(rank=r, phase=p, exchange=e, start_s=a, end_s=b) for r, p, e, a, b in spans),
        world_size=ranks,
    )
    return prediction_html(prediction_of(plan, unit, timeline), plan)


def lanes(page):
    """Heights of lanes from the top."""
    return re.findall(r'height="([\d.]+)" class="lane"', page)


def test_ranks_that_do_the_same_share_a_row():
    both = [(rank, "train", "", 0.0, 1.0) for rank in range(5)]
    assert re.findall(r">(ranks? [^<]*)</text>", predict(*both, ranks=5)) == ["ranks 0 to 4"]
    page = predict(*both, (2, "rows", "", 1.0, 2.0), ranks=5)
    assert re.findall(r">([^<]*ranks?[ :][^<]*)</text>", page) == ["4 ranks: 0, 1, 3, ...", "rank 2"]
    assert "rank 2, rows: rows, 1.00 s at 1.00 s" in page


def test_lanes_are_as_high_as_what_runs_at_once():
    calm = [(0, "train", "", 0.0, 1.0), (0, "rows", "", 1.0, 2.0)]
    assert lanes(predict(*calm, ranks=1)) == ["18.00", "18.00"]
    assert lanes(predict(*[(0, "flow", f"f{i}", 0.0, 1.0) for i in range(5)], ranks=1)) == ["35.00"]
    assert lanes(predict(*[(0, "flow", f"f{i}", 0.0, 1.0) for i in range(50)], ranks=1)) == ["56.00"]


def test_phases_that_nobody_knows_have_colours_of_their_own():
    page = predict(
        *((0, phase, "", i, i + 1.0) for i, phase in enumerate(("pack", "cut", "glue", "wire"))), ranks=1
    )
    assert re.findall(r'chip p-(\w+)"></i>(\w+)', page) == [
        ("pack", "pack"),
        ("central", "cut"),
        ("plan", "glue"),
        ("wire", "wire"),
    ]


def test_many_rows_are_thinned_and_text_is_escaped():
    page = predict(
        *((rank, "<i>", "a&b", 0.0, 1.0 + rank) for rank in range(40)), ranks=40, unit="all_reduce"
    )
    assert len(lanes(page)) == 16 and "24 rows are not shown" in page
    assert "All reduce on 40 ranks" in page and "<i>," not in page and "<b>" not in page and "a&amp;b" in page


def test_nothing_to_draw_is_a_page_too():
    assert "Timeline" not in predict(ranks=2)
