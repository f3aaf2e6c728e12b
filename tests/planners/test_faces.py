"""One face for all planners: the same plans as by their families' own calls, and what is refused."""

import importlib
import inspect
import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import wirewise as ww
from tests.conformance.instances import CASES, ENOUGH_S, REGISTRIES
from tests.trace.synthetic import make
from wirewise.cli.main import app
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS, bitwidth, cache, collective, fusion, pipeline, placement, planner
from wirewise.planners.faces import problems_of
from wirewise.planners.fusion.cupcake import compression_problem

FAMILY = {"modules": "fusion", "gradients": "fusion", "operators": "fusion"}
# With the planners' own knobs, but for those that end searches of the tests early.
PLAIN = [
    case
    for case in CASES
    if not case.knobs
    and not (case.grain == "modules" and case.planner == "mcmc")
    and case.grain != "collective"
]


@pytest.mark.sweep
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
    if case.grain == "deployment":
        known = {"simulations": 60} | ({"playouts": 20} if case.planner == "tag" else {})
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


def one(grain, **known):
    """A case with the planner's own knobs."""
    wanted = {"name": "trace", "planner": "cupcake", "knobs": ""} | known
    return next(c for c in CASES if c.grain == grain and all(getattr(c, k) == v for k, v in wanted.items()))


def test_a_job_and_its_links_are_a_problem():
    groups = one("gradients")
    assert fusion.cupcake(groups.instance.job, groups.instance.links, codec="efsign") == groups.plan()
    modules = one("modules", name="two", planner="ddp")
    assert fusion.ddp(modules.instance.problem, modules.instance.links) == modules.plan()
    tasks = one("placement", name="mixed", planner="gnn-tasks").instance
    assert placement.gnn_tasks(tasks.job, tasks.links, steps=40) == placement.gnn_tasks(
        tasks.problem, steps=40
    )
    bits = one("bitwidth", name="two", planner="auto")
    costs = bits.instance.costs
    assert bitwidth.auto(bits.instance.problem, costs.links, codec=costs.codec) == bits.plan()


def test_a_recorded_run_tells_its_links():
    trace = make(ranks=2, steps=3).seen
    found = fusion.ddp(trace)
    assert (found.planner, found.world_size) == ("ddp", 2)
    fast = fusion.ddp(trace, ww.cost.Links.uniform(2, 1e12))
    assert fast.predicted_step_s < found.predicted_step_s
    with pytest.raises(InputError, match="got a str as the links of the job"):
        fusion.ddp(trace, "cluster.toml")


def test_a_graph_and_its_links_are_a_problem():
    graph = one("operators", name="any-order", planner="disco").instance
    links, knobs = ww.cost.Links.uniform(4, 1e8, 1e-4), {"stop": 20, "evaluations": 100}
    found = fusion.disco(graph.job, links, regions=graph.costs, **knobs)
    assert found.world_size == 4
    assert ww.sim.predict(found, graph.job, links, regions=graph.costs).step_s == pytest.approx(
        found.predicted_step_s, rel=1e-9
    )
    line = fusion.disco(graph.job, regions=graph.costs, all_reduce=graph.links, ranks=3, **knobs)
    assert line.world_size == 3
    assert line.buckets == fusion.disco(graph.problem, **knobs).buckets


def test_a_collective_is_named():
    topology = ww.topology.preset("lab-4@200mbit")
    links = ww.cost.Links.of(topology)
    found = collective.greedy("all_reduce", links, size_bytes=4e6)
    assert found.predicted_s == collective.greedy("all_reduce", topology, size_bytes=4e6).predicted_s
    assert (found.planner, found.world_size) == ("greedy", 4)
    with pytest.raises(InputError, match="got the collective 'scan'"):
        collective.taccl("scan", links, size_bytes=4e6)
    with pytest.raises(InputError, match=r"say nothing of the graph between ranks; make them with Links.of"):
        collective.taccl("all_reduce", ww.cost.Links.uniform(4, 1e8), size_bytes=4e6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda job, links: fusion.cupcake(job, links, codec="zip"),
            "no times of codec 'zip' on V100; the table has: none",
        ),
        (
            lambda job, links: fusion.cupcake(job, links, codec="topk"),
            "no times of codec 'topk' on V100; .*dgc",
        ),
        (lambda job, links: fusion.cupcake(job, 3), "got a int as the links of the job; expected Links"),
        (
            lambda job, links: fusion.cupcake(None, links),
            "'cupcake' is for gradients of a model and takes CompressionProblem alone, or .*; got None",
        ),
        (
            lambda job, links: fusion.dpro(job, links),
            "or Trace and its links; got GradientTrace beside links",
        ),
        (
            lambda job, links: fusion.cupcake(compression_problem(job, links), codec="dgc"),
            "got CompressionProblem beside codec",
        ),
        (
            lambda job, links: cache.vip(one("cache", name="two", planner="vip").instance.problem, links),
            "'vip' is for batches drawn .* and takes CacheProblem alone; got CacheProblem beside links",
        ),
        (
            lambda job, links: bitwidth.auto(
                one("bitwidth", name="two", planner="auto").instance.problem, codec=None
            ),
            "got none as the links of the job",
        ),
        (
            lambda job, links: fusion.disco(
                one("operators", name="layers", planner="disco").instance.job, links, all_reduce=object()
            ),
            "all_reduce beside links or costs",
        ),
    ],
)
def test_what_is_no_job_of_a_planner_is_refused(call, message):
    groups = one("gradients").instance
    with pytest.raises(InputError, match=message):
        call(groups.job, groups.links)


def test_names_of_families_are_the_functions_of_the_table():
    assert ww.planners.fusion.cupcake is PLANNERS["fusion"]["cupcake"]
    assert ww.planners.collective.taccl is PLANNERS["collective"]["taccl"]
    for family in (bitwidth, cache, collective, fusion, pipeline, placement):
        attributes = {name.replace("-", "_"): name for name in family.PLANNERS}
        shown = attributes.keys() & set(family.__all__)
        assert shown and all(getattr(family, name) is family.PLANNERS[attributes[name]] for name in shown)
    assert {"codec", "least_gain", "seed"} <= set(inspect.signature(fusion.cupcake).parameters)
    # The modules of the same names are still there.
    assert importlib.import_module("wirewise.planners.fusion.cupcake").solve


def test_planners_say_what_they_are_for():
    for planners in PLANNERS.values():
        assert all(problems_of(one).about and not problems_of(one).takes(None) for one in planners.values())
    assert problems_of(fusion.disco).about == "operators of a captured step"
    assert problems_of(lambda job, links: None) is None


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, own in PLANNERS.items() for name in own]
)
def test_help_documents_the_parameters_of_the_planner_and_no_others(family, name):
    planner = PLANNERS[family][name]
    text = inspect.getdoc(planner)
    body = text.split("\nArgs:\n")[1].split("\n\n")[0]
    documented = dict(re.findall(r"^    (\w+): (\S.*)", body, re.MULTILINE))
    assert list(documented) == list(inspect.signature(planner).parameters)
    assert text.splitlines()[0].endswith(".") and "problem" not in documented
