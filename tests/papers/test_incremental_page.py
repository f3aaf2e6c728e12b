"""The page about growing graphs says what was found, and its names do not lie on each other."""

import re

import pytest

from wirewise.results import IncrementalRecord
from wirewise_papers.sea_er.page import _chart, incremental_html
from wirewise_papers.sea_er.records import IncrementalRun


def record(ap, af):
    return IncrementalRecord(
        ap=ap,
        af=af,
        ap_by_task=(0.95, ap),
        af_by_task=(0.0, af),
        accuracy=((0.95,), (2 * ap - 0.9, 0.9)),
        seconds=1.5,
    )


def made(**methods):
    return IncrementalRun(
        dataset="de<bian",
        setting="task",
        growth="inductive",
        tasks=2,
        classes_per_task=2,
        budget=5,
        workers=1,
        seed=0,
        methods=methods,
    )


def test_the_best_method_and_its_bounds_are_told():
    page = incremental_html(
        made(bare=record(0.7, -0.3), coverage=record(0.9, -0.05), joint=record(0.95, 0.01))
    )
    assert (
        "coverage ends at 90.0\N{NO-BREAK SPACE}% average accuracy over 2 tasks; fine-tuning 70.0\N{NO-BREAK SPACE}%, "
        "training on all tasks 95.0\N{NO-BREAK SPACE}%." in page
    )
    assert "de&lt;bian" in page and "de<bian" not in page
    assert page.count('class="line c') == 6
    rows = re.findall(r"<tr><td>(\w+)</td><td class=\"num\">([\d.]+)</td><td class=\"num\">([-+.\d]+)", page)
    assert rows == [("joint", "95.0", "+1.0"), ("coverage", "90.0", "-5.0"), ("bare", "70.0", "-30.0")]


def test_joint_training_alone_is_a_page_too():
    assert "joint ends at 90.0" in incremental_html(made(joint=record(0.9, 0.0)))


@pytest.mark.parametrize(("tasks", "wish"), [(2, [1, 2]), (3, [1, 2, 3]), (20, [5, 10, 15, 20])])
def test_tasks_are_counted_in_whole_numbers(tasks, wish):
    chart = _chart({"bare": (0.9,) * tasks}, "AP")
    assert [float(at) for at in re.findall(r'class="tick" text-anchor="middle">([\d.]+)<', chart)] == wish
