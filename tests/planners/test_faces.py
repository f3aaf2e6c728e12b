"""One face for all planners: the same plans as by their families' own calls, and what is refused."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.conformance.instances import CASES, ENOUGH_S, REGISTRIES
from wirewise.cli.main import app
from wirewise.errors import PlanError
from wirewise.planners import PLANNERS, planner

FAMILY = {"modules": "fusion", "gradients": "fusion", "operators": "fusion"}
# With the planners' own knobs, but for those that end searches of the tests early.
PLAIN = [
    case
    for case in CASES
    if not case.knobs
    and not (case.grain == "modules" and case.planner == "mcmc")
    and case.grain != "collective"
]


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: f"{case.grain}/{case.id}")
def test_a_plan_is_that_of_the_familys_own_call(case):
    one, family = case.instance, FAMILY.get(case.grain, case.grain)
    problem, known, wanted = one.problem, {}, case.plan()
    if case.grain == "bitwidth":
        problem = replace(problem, costs=one.costs)
    if case.grain == "operators":
        known = {"other_s": 1e-5, "stop": 60, "evaluations": 400}
    if case.grain == "cache":
        known = {"alpha": 0.3}
    if case.grain == "placement":
        known = {"steps": 40}
    assert planner(family, case.planner)(problem, seed=wanted.seed, **known) == wanted


def test_every_planner_is_listed():
    for grain, names in REGISTRIES.items():
        assert set(names) <= set(PLANNERS[FAMILY.get(grain, grain)])
    assert sum(map(len, PLANNERS.values())) == sum(map(len, REGISTRIES.values()))
    listed = CliRunner().invoke(app, ["list", "planners", "--json", "-"])
    assert json.loads(listed.stdout)["planners"] == {
        family: list(names) for family, names in PLANNERS.items()
    }
    assert "cupcake" in CliRunner().invoke(app, ["list", "planners"]).stdout


def test_a_time_budget_is_kept_or_refused():
    collective = next(case for case in CASES if case.grain == "collective" and case.planner == "greedy")
    plan = planner("collective", "greedy")(collective.instance.problem, seed=1, time_budget_s=ENOUGH_S)
    assert plan.program == collective.plan().program
    modules = next(case for case in CASES if case.grain == "modules")
    assert planner("fusion", "dpro")(modules.instance.problem, time_budget_s=ENOUGH_S).planner == "dpro"
    with pytest.raises(PlanError, match="'ddp' has no search that time could end"):
        planner("fusion", "ddp")(modules.instance.problem, time_budget_s=1.0)


def test_rules_with_a_number():
    groups = next(case for case in CASES if case.grain == "gradients" and case.id.endswith("even/4"))
    assert planner("fusion", "even")(groups.instance.problem, number=4) == groups.plan()
    with pytest.raises(PlanError, match="even:NUMBER"):
        planner("fusion", "even")(groups.instance.problem)


def test_unknown_names_and_problems_without_costs_are_refused():
    with pytest.raises(PlanError, match="unknown family of plans 'graph'; expected one of: bitwidth, cache"):
        planner("graph", "x")
    with pytest.raises(PlanError, match="unknown fusion planner 'x'; expected one of: dpro"):
        planner("fusion", "x")
    bits = next(case for case in CASES if case.grain == "bitwidth")
    with pytest.raises(PlanError, match="no costs; make it with BitWidthProblem"):
        planner("bitwidth", "auto")(bits.instance.problem)
