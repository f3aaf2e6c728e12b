from __future__ import annotations

import re

from typer.testing import CliRunner

from tests.planners.recovery.problems import job
from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.planners import PLANNERS
from wirewise.plans import save
from wirewise.report.recovery_picture import policy_rows, recovery_sections

LINKS = Links.uniform(5, 1e10, 1e-4)
TRACE = job([0.09, 0.05, 0.07, 0.02], [1e6, 2e6, 1e6], ranks=[(0,), (1, 2), (3,), (4,)])


def drawn(**knobs):
    plan = PLANNERS["recovery"]["swift"](TRACE, LINKS, mtbf_s=60.0, **knobs)
    return plan, "".join(recovery_sections(plan))


def test_stages_logs_phases_and_the_front_are_drawn():
    plan, page = drawn()
    assert page.count('class="hop ') == len(plan.logs) > 0
    assert len(re.findall(r'class="bar faint c\d"', page)) == 4 and page.count('class="lane"') == len(
        plan.groups
    )
    for phase in ("detect", "regroup", "restore", "recompute", "resume"):
        assert f"stage 0, {phase}: " in page
    assert page.count('r="3.2"') == len(plan.front) and ">chosen<" in page
    assert "Why this plan" in page and "stage 1 on ranks 1, 2: from replica, recovered in " in page


def test_without_logs_there_is_no_front_and_no_arrow():
    _, page = drawn(strategy="checkpoint")
    assert 'class="hop ' not in page and "Storage against recomputation" not in page
    assert "No messages are logged." in page


def test_the_best_policy_comes_first():
    plan, _ = drawn()
    titles, rows = policy_rows(plan)
    assert titles[0] == "policy" and {row[0] for row in rows} == {
        "this plan",
        *(one.name for one in plan.others),
    }
    goodput = [float(row[-1].removesuffix(" %")) for row in rows]
    assert goodput == sorted(goodput, reverse=True)


def test_show_writes_the_page(tmp_path):
    plan, _ = drawn()
    save(plan, tmp_path / "plan.json")
    words = ["show", str(tmp_path / "plan.json"), "--html", str(tmp_path / "plan.html")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert "Other policies" in page and "recovery plan by" in page
