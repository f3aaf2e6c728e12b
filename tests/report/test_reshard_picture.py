"""Transfers of reshard plans as bars over time."""

from __future__ import annotations

import re

import pytest

from tests.planners.reshard.test_cross_mesh import plan_between
from wirewise.report.reshard_picture import drawn_links, reshard_section, way_rows
from wirewise.sim.lowering.reshard import simulate_tasks


def test_a_transfer_stands_at_every_interface_on_its_way():
    plan, links = plan_between("2x2:R,S0,R", "2x2:S0,R,R", (64, 64, 64), strategy="ring")
    travels = simulate_tasks(plan.tasks, plan.chunk_bytes, links)
    rows = way_rows(plan, travels)
    assert {name.rpartition(" ")[0] for name in rows} == {"out of host", "into host", "inside host"}
    drawn = reshard_section(plan, links, introduction="On <links>.")
    # Inside hosts nothing takes time here.
    assert drawn.count('class="bar ') == sum(map(len, rows.values())) and "On &lt;links&gt;." in drawn
    tasks = {one.task for one in travels}
    assert {int(task) for task in re.findall(r": task (\d+), ", drawn)} == tasks
    assert drawn.count('<i class="chip') == len({plan.tasks[task].round for task in tasks}) > 1


def test_bars_stand_at_their_times():
    plan, links = plan_between("1x2:S0,R,R", "1x2:R,R,R", (64, 64, 64), per_host=1, strategy="p2p")
    travels = simulate_tasks(plan.tasks, plan.chunk_bytes, links)
    drawn = reshard_section(plan, links)
    boxes = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*class="bar', drawn)
    assert max(float(x) + float(wide) for x, wide in boxes) == pytest.approx(988.0, abs=1.0)
    assert max(one.end_s for one in travels) == pytest.approx(plan.predicted_s)


def test_many_transfers_at_once_are_thin():
    plan, links = plan_between("2x4:R,S01,R", "2x4:S01,R,R", (64, 64, 8), per_host=4, strategy="p2p")
    drawn = reshard_section(plan, links)
    assert 'class="inside' not in drawn
    assert float(re.findall(r'viewBox="0 0 1000 ([\d.]+)"', drawn)[0]) < 500


def test_a_plan_alone_is_drawn_on_the_links_of_its_bound():
    plan, links = plan_between("2x2:R,S0,R", "2x2:S0,R,R", (64, 64, 64))
    own = drawn_links(plan)
    assert tuple(own.host_of_rank) == plan.hosts
    assert own.bandwidth_out_bytes_per_s == pytest.approx(links.bandwidth_out_bytes_per_s)
    assert 'class="bar' in reshard_section(plan, own)


def test_what_stays_where_it_is_has_no_picture():
    plan, links = plan_between("1x2:S0,R,R", "1x2:S0,R,R", disjoint=False)
    assert reshard_section(plan, links) == ""
