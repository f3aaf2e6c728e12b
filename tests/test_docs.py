"""The pages hold what runs and name what exists."""

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wirewise import errors, graph, lab, plans, topology

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]
ACCEPTANCE = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
TRACING = (ROOT / "docs" / "acceptance-tracing.md").read_text(encoding="utf-8")
COLLECTIVES = (ROOT / "docs" / "acceptance-collectives.md").read_text(encoding="utf-8")
GRADIENTS = (ROOT / "docs" / "acceptance-gradients.md").read_text(encoding="utf-8")
MINI_BATCH = (ROOT / "docs" / "acceptance-mini-batch.md").read_text(encoding="utf-8")
DIALOGUE = (ROOT / "docs" / "acceptance-dialogue.md").read_text(encoding="utf-8")
RECOVERY = (ROOT / "docs" / "acceptance-recovery.md").read_text(encoding="utf-8")
SCALE = (ROOT / "docs" / "acceptance-scale.md").read_text(encoding="utf-8")
MODEL_PARALLEL = (ROOT / "docs" / "acceptance-model-parallel.md").read_text(encoding="utf-8")
TRACING_IDS = [
    *(f"R{i}" for i in range(1, 9)),
    *(f"W{i}" for i in range(1, 7)),
    *(f"C{i}" for i in range(1, 5)),
    *(f"P{i}" for i in range(1, 5)),
    *(f"O{i}" for i in range(1, 7)),
    *(f"K{i}" for i in range(1, 7)),
    *(f"F{i}" for i in range(1, 3)),
]
COLLECTIVE_IDS = [
    *(f"A{i}" for i in range(1, 4)),
    *(f"B{i}" for i in range(1, 6)),
    *(f"C{i}" for i in range(1, 9)),
    *(f"D{i}" for i in range(1, 3)),
    *(f"E{i}" for i in range(1, 7)),
    *(f"F{i}" for i in range(1, 9)),
    *(f"G{i}" for i in range(1, 6)),
    *(f"H{i}" for i in range(1, 5)),
]
GRADIENT_IDS = [
    *(f"A{i}" for i in range(1, 8)),
    *(f"B{i}" for i in range(1, 6)),
    *(f"C{i}" for i in range(1, 7)),
    *(f"D{i}" for i in range(1, 6)),
    *(f"E{i}" for i in range(1, 7)),
]
MINI_BATCH_IDS = [
    *(f"S{i}" for i in range(1, 7)),
    *(f"V{i}" for i in range(1, 7)),
    *(f"D{i}" for i in range(1, 7)),
    *(f"N{i}" for i in range(1, 6)),
    *(f"P{i}" for i in range(1, 7)),
    *(f"E{i}" for i in range(1, 9)),
]
MODEL_PARALLEL_IDS = [
    *(f"S{i}" for i in range(1, 6)),
    *(f"B{i}" for i in range(1, 8)),
    *(f"R{i}" for i in range(1, 9)),
]
IDS = [
    *(f"Q{i}" for i in range(1, 7)),
    *(f"X{i}" for i in range(1, 11)),
    *(f"B{i}" for i in range(1, 4)),
    *(f"A{i}" for i in range(1, 7)),
    *(f"S{i}" for i in range(1, 7)),
    *(f"T{i}" for i in range(1, 5)),
    *(f"M{i}" for i in range(1, 3)),
    *(f"I{i}" for i in range(1, 9)),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


LONG = (
    "concepts/codec.md",
    "concepts/memory.md",
    "howto/compress-gradients.md",
    "howto/fuse-operators.md",
    "howto/see-a-collective.md",
)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (name_of(page) in LONG)) for page in WITH_CODE],
    ids=name_of,
)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    exec(compile(code, str(page), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize(
    ("page", "ids"),
    [
        (ACCEPTANCE, IDS),
        (TRACING, TRACING_IDS),
        (COLLECTIVES, COLLECTIVE_IDS),
        (GRADIENTS, GRADIENT_IDS),
        (MINI_BATCH, MINI_BATCH_IDS),
        (MODEL_PARALLEL, MODEL_PARALLEL_IDS),
        (RECOVERY, [f"R{i}" for i in range(1, 16)]),
        (DIALOGUE, [f"C{i}" for i in range(1, 6)]),
    ],
    ids=[
        "first",
        "tracing",
        "collectives",
        "gradients",
        "mini-batch",
        "model-parallel",
        "recovery",
        "dialogue",
    ],
)
def test_acceptance_has_every_id_once(page, ids):
    assert re.findall(r"^\| ([A-Z]\d+) \|", page, re.MULTILINE) == ids


BAD_INPUT = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8")
PLACES = sorted(
    set(
        re.findall(
            r"`((?:tests|benchmarks)/[^`]+)`",
            ACCEPTANCE
            + TRACING
            + COLLECTIVES
            + GRADIENTS
            + MINI_BATCH
            + MODEL_PARALLEL
            + RECOVERY
            + DIALOGUE
            + SCALE
            + BAD_INPUT,
        )
    )
)


@pytest.mark.sweep
@pytest.mark.parametrize("place", PLACES)
def test_places_exist(place):
    file, test, row = re.fullmatch(r"(\S+?)(?:::(\w+))?(?: --only (\S+))?", place).groups()
    text = (ROOT / file).read_text(encoding="utf-8")
    if test:
        assert re.search(rf"def {test}\b", text)
    if row:
        assert (
            f'"{row}"' in re.search(r"^ROWS(?:: [^\n]+)? = [({](.*?)[)}]$", text, re.MULTILINE | re.DOTALL)[1]
        )


RESULTS = ROOT / "benchmarks" / "results"


def page_of(name: str) -> Path:
    """The page of results that a text calls NAME; the machine is told where it is not the first."""
    named = [RESULTS / f"{name}{end}_202611.md" for end in ("_2x-epyc", "", "_2x-xeon")]
    return next(page for page in named if page.exists())


LOAD = re.compile(r"load average (?:at the start )?(\d+\.\d)|load was (\d+\.\d)")


@pytest.mark.sweep
@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_pages_tell_their_conditions(page):
    text = page.read_text(encoding="utf-8")
    assert "Command: " in text and re.search(r"\d{4}-\d\d-\d\d", text)
    loads = [float(first or second) for first, second in LOAD.findall(text)]
    assert loads or "the load was not recorded" in text
    assert max(loads, default=0) <= 3 or "figures of seconds may be too high" in text


SCRIPTS = sorted(script.parent.name for script in (ROOT / "benchmarks").glob("*/run.py"))


def test_all_scripts_and_pages_of_results_are_listed():
    listed = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    scripts, pages = listed.split("## Published results")
    assert re.findall(r"^\| `benchmarks/(\w+)` \|", scripts, re.MULTILINE) == SCRIPTS
    named = [name for row in re.findall(r"^\| (`.*?) \|", pages, re.MULTILINE) for name in row.split(", ")]
    assert sorted(page_of(name.strip("`")) for name in named) == sorted(RESULTS.glob("*.md"))


def test_every_mode_has_its_source():
    from wirewise.runtime.full_graph import MODES

    table, sources = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8").split("## Sources", 1)
    for name in MODES:
        assert re.search(rf"^\| `{name}` \|", table, re.MULTILINE), name
        assert name in ("fp32", "bf16") or f"`{name}`" in sources, name


def test_every_public_package_has_a_page_of_reference(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    names = list(importlib.import_module("reference_pages").public_names())
    source = ROOT / "src"
    for file in sorted((source / "wirewise").rglob("__init__.py")):
        name = ".".join(file.parent.relative_to(source).parts)
        exports = re.search(
            r"^__all__ = \[.+?\]$", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        if exports and name not in ("wirewise", "wirewise.cli"):
            assert name in names, name
    assert len(set(names)) == len(names)
    assert {"wirewise.errors", "wirewise.units", "wirewise_papers.adaqp.experiment"} <= set(names)
    assert "generated/*" in (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")


def test_docstrings_of_attributes_are_text_in_which_a_colon_ends_no_type(monkeypatch):
    napoleon = pytest.importorskip("sphinx.ext.napoleon")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    reader = napoleon.GoogleDocstring
    monkeypatch.setattr(reader, "_consume_inline_attribute", reader._consume_inline_attribute)
    importlib.import_module("plain_fields").setup(None)
    text = "Offsets, [N + 1]: the rows\nof a node.\n\nMore."
    assert reader(text, what="attribute", name="indptr").lines() == text.split("\n")
    assert '"plain_fields"' in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")


LOOP = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(600)  # eight commands, of which one trains six times: 90 s of processor time
def test_the_loop_of_the_readme_runs_as_commands(tmp_path):
    """On a script of a few steps; what is measured in turns is measured twice."""
    shutil.copy(ROOT / "examples" / "ddp_text" / "train.py", tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = next(block for block in LOOP.findall(text) if "wirewise sim" in block).splitlines()
    assert len(lines) == 8
    for line in lines:
        words = shlex.split(line, comments=True)
        if "train.py" in words:
            words += ["--steps", "40", "--width", "32", "--layers", "2"]
        if words[1:3] == ["run", "dpro"]:
            words[3:3] = ["--pairs", "2", "--steps", "20"]
        words = [word.replace("torchrun", str(Path(sys.executable).with_name("torchrun"))) for word in words]
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert plans.load(tmp_path / "tuned" / "plan.json").buckets


# What a user would write next.
SCORE = """
model.eval()
with torch.no_grad():
    score = job.accuracy(model(data.x, data.edge_index), data.test_mask)
if dist.get_rank() == 0:
    print(score)
"""


def train(*command: str) -> list[str]:
    """Last lines of rank 0 of two."""
    with lab.Loopback() as network:
        result = network.run(list(command), processes_per_host=2, launcher="direct", timeout_s=100)
    assert result.ok, result.tails
    return result.tails[0]


def test_the_loop_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    topology.save(topology.lab_hosts(["1gbit"] * 4), "cluster.toml")
    tensors = [{"name": f"layer{i}.weight", "elements": 300_000, "gap_us": 900.0} for i in range(6)]
    (tmp_path / "gradients.json").write_text(json.dumps({"tensors": tensors}))
    *_, loop = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    exec(compile(loop, "README.md", "exec"), {})
    plan = plans.load("plan.json")
    assert capsys.readouterr().out.startswith(
        "simulated: step of 4 ranks (classes of ranks that do the same: 1) under the fusion plan by 'cupcake' takes "
    )
    assert plan.predicted_step_s > 0


@pytest.mark.dist
@pytest.mark.slow
def test_the_example_trains_on_two_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = graph.load("block:nodes=600,classes=4,noise=1.0", seed=1)
    graph.save_parts(data, graph.partition(data, 2), tmp_path / "parts")
    script = str(ROOT / "examples" / "your_own_model.py")
    said = train(script, "--parts", "parts", "--mode", "uniform-8", "--steps", "10")
    assert "test accuracy over all ranks" in said[-1]


@pytest.mark.dist
@pytest.mark.slow
def test_the_quickstart_trains_on_two_ranks(tmp_path, monkeypatch, wirewise_data):
    monkeypatch.chdir(tmp_path)
    raw = wirewise_data / "Planetoid" / "Cora" / "raw"
    if not any(raw.glob("*")):
        pytest.skip(f"{raw} has no files; set WIREWISE_DATA")
    shutil.copytree(raw, tmp_path / "data" / "Cora" / "raw")
    code = (ROOT / "examples" / "planetoid.py").read_text(encoding="utf-8")
    training, end, rest = code.partition("dist.destroy_process_group()")
    (tmp_path / "train.py").write_text(training + SCORE + end + rest)
    # Seven classes; a model that has learnt nothing gets a third at most.
    assert float(train("train.py")[-1]) > 0.6


def test_troubleshooting_names_every_error_and_quotes_messages_that_exist():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert all(f"| `{name}` |" in page for name in errors.__all__ if name != "WirewiseError")
    source = " ".join(
        re.sub(r'"\s+f?"', "", path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))
    )
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    missing = []
    for message in quoted:
        # What stands between names, numbers and points of omission.
        parts = [
            part for part in re.split(r"\.\.\.|\brank \d+|\d+|\b[A-Z]+Error\b", message) if len(part) > 8
        ]
        missing += [part for part in parts if part.strip(" :") not in source]
    assert missing == []
