"""What may be imported without torch, and what a folder promises to export."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import wirewise
from wirewise import plans, trace

TORCH_FREE = [
    "wirewise",
    "wirewise.cli.main",
    "wirewise.codec",
    "wirewise.cost",
    "wirewise.errors",
    "wirewise.files",
    "wirewise.graph",
    "wirewise.lab",
    "wirewise.options",
    "wirewise.planners.bitwidth",
    "wirewise.plans",
    "wirewise_papers.cupcake.job",
    "wirewise_papers.gnn_tasks.job",
    "wirewise_papers.adaqp.job",
    "wirewise_papers.salientpp.job",
    "wirewise.advice.comparing",
    "wirewise.advice.options",
    "wirewise.advice.reading",
    "wirewise.trials.stall_job",
    "wirewise_papers.dpro.job",
    "wirewise_papers.sea_er.job",
    "wirewise.results",
    "wirewise.rng",
    "wirewise.sim",
    "wirewise.report.replay_page",
    "wirewise.sim.analysis",
    "wirewise.topology",
    "wirewise.trace",
    "wirewise.units",
]
# Needs a package that is not installed everywhere.
OPTIONAL = {
    "wirewise.codec.kernels.triton_gpu": "triton",
    "wirewise.codec.gradients.kernels.gpu": "triton",
    "wirewise.codec.gradients.kernels.gpu_codes": "triton",
}


def loaded_by(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_planning_does_not_load_torch():
    assert "torch" not in loaded_by("import " + ", ".join(TORCH_FREE))


def test_records_of_plans_do_not_load_readers_of_traces():
    assert "wirewise.trace" not in loaded_by("import wirewise.plans")


def test_a_protected_rank_loads_no_planner_no_simulator_and_no_compiler():
    """A spare loads all of it before it can take a role."""
    modules = "agent, membership, protection, session"
    loaded = loaded_by(f"from wirewise.runtime.recovery import {modules}")
    assert "torch" in loaded
    assert not loaded & {"numba", "scipy", "wirewise.collective", "wirewise.planners", "wirewise.sim"}


def test_a_check_of_a_program_needs_no_compiler():
    assert "numba" not in loaded_by("import wirewise.collective, wirewise.plans.collective")
    assert "numba" not in loaded_by(
        "from wirewise.cli.main import app\napp(['check', 'broadcast:binomial:8'], standalone_mode=False)"
    )


def test_a_name_of_a_package_is_not_that_of_a_module_in_it():
    """Python would set the module in place of a name that is imported when it is asked for."""
    for name in ("codec.gradients", "cost", "plans", "runtime.recovery", "sim"):
        package = importlib.import_module(f"wirewise.{name}")
        inside = {module.name for module in pkgutil.iter_modules(package.__path__)}
        assert not inside & set(package.__all__)


def test_kinds_of_tasks_are_the_same_in_traces_and_plans():
    assert trace.tasks.TaskKind == plans.placement.TaskKind


@pytest.mark.sweep
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "adaqp", "--help"],
        ["run", "sea-er", "--help"],
        ["plan", "cache", "--help"],
        ["profile", "stalls", "--help"],
        ["advise", "--help"],
        ["trace", "show", "--help"],
        ["sim", "--help"],
        ["list", "systems"],
    ],
)
@pytest.mark.sample(3)
def test_help_and_lists_do_not_load_torch(words):
    statement = f"""
from wirewise.cli.main import app
try:
    app({words!r})
except SystemExit as end:
    assert end.code == 0, end
"""
    loaded = loaded_by(statement)
    assert "wirewise.cli.main" in loaded
    assert "torch" not in loaded


def test_help_does_not_import_the_groups():
    loaded = loaded_by("from wirewise.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass")
    assert "wirewise.cli.data" not in loaded


def test_the_front_door_loads_what_is_used():
    assert not {"numpy", "torch"} & loaded_by("import wirewise as ww\nassert 'sim' in dir(ww)")
    used = (
        "ww.sim.predict, ww.planners.fusion.cupcake, ww.planners.PLANNERS, ww.cost.Links.of, ww.topology.load"
    )
    assert "torch" not in loaded_by(f"import wirewise as ww\n{used}")
    with pytest.raises(
        AttributeError,
        match="'wirewise' has no attribute 'planner'; it has advice, advise, codec, collective",
    ):
        wirewise.planner  # noqa: B018


def test_the_front_door_has_the_questions_as_functions():
    from wirewise.advice.reading import advise
    from wirewise.profile.watching import watch

    assert (wirewise.advise, wirewise.watch) == (advise, watch) and wirewise.advice.FAMILIES


def modules() -> list[str]:
    found = (m.name for m in pkgutil.walk_packages(wirewise.__path__, "wirewise."))
    return [name for name in found if name != "wirewise.__main__"]


@pytest.mark.sweep
@pytest.mark.parametrize("name", modules())
def test_exported_names_exist(name):
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name], reason=f"{OPTIONAL[name]} is not installed")
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(set(exported)) == len(exported)
    for word in exported:
        assert getattr(module, word) is not None


def test_every_module_says_what_it_exports():
    imported = [importlib.import_module(name) for name in modules() if name not in OPTIONAL]
    # Folders that only hold others export nothing.
    assert [m.__name__ for m in imported if not hasattr(m, "__all__") and not hasattr(m, "__path__")] == []
