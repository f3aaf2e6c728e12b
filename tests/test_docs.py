"""The pages hold what runs and name what exists."""

import json
import re
import shutil
from pathlib import Path

import pytest

from wirewise import graph, lab, plans, topology

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]
ACCEPTANCE = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
TRACING = (ROOT / "docs" / "acceptance-tracing.md").read_text(encoding="utf-8")
COLLECTIVES = (ROOT / "docs" / "acceptance-collectives.md").read_text(encoding="utf-8")
GRADIENTS = (ROOT / "docs" / "acceptance-gradients.md").read_text(encoding="utf-8")
MINI_BATCH = (ROOT / "docs" / "acceptance-mini-batch.md").read_text(encoding="utf-8")
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
IDS = [
    *(f"Q{i}" for i in range(1, 7)),
    *(f"X{i}" for i in range(1, 10)),
    *(f"B{i}" for i in range(1, 4)),
    *(f"A{i}" for i in range(1, 7)),
    *(f"S{i}" for i in range(1, 7)),
    *(f"T{i}" for i in range(1, 5)),
    *(f"M{i}" for i in range(1, 3)),
    *(f"I{i}" for i in range(1, 9)),
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


LONG = ("howto/fuse-operators.md",)


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
    ],
    ids=["first", "tracing", "collectives", "gradients", "mini-batch"],
)
def test_acceptance_has_every_id_once(page, ids):
    assert re.findall(r"^\| ([A-Z]\d+) \|", page, re.MULTILINE) == ids


BAD_INPUT = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8")
PLACES = sorted(
    set(
        re.findall(
            r"`((?:tests|benchmarks)/[^`]+)`",
            ACCEPTANCE + TRACING + COLLECTIVES + GRADIENTS + MINI_BATCH + BAD_INPUT,
        )
    )
)


@pytest.mark.parametrize("place", PLACES)
def test_places_exist(place):
    file, test, row = re.fullmatch(r"(\S+?)(?:::(\w+))?(?: --only (\S+))?", place).groups()
    text = (ROOT / file).read_text(encoding="utf-8")
    if test:
        assert re.search(rf"def {test}\b", text)
    if row:
        assert f'"{row}"' in re.search(r"^ROWS = [({](.*?)[)}]$", text, re.MULTILINE | re.DOTALL)[1]


def test_every_mode_has_its_source():
    from wirewise.runtime.full_graph import MODES

    table, sources = (ROOT / "docs" / "modes.md").read_text(encoding="utf-8").split("## Sources", 1)
    for name in MODES:
        assert re.search(rf"^\| `{name}` \|", table, re.MULTILINE), name
        assert name in ("fp32", "bf16") or f"`{name}`" in sources, name


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
        result = network.run(list(command), processes=2, launcher="direct", timeout_s=100)
    assert result.ok, result.tails
    return result.tails[0]


def test_the_loop_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    topology.save(topology.lab_hosts(["1gbit"] * 4), "cluster.toml")
    tensors = [{"name": f"layer{i}.weight", "elements": 300_000, "gap_us": 900.0} for i in range(6)]
    (tmp_path / "gradients.json").write_text(json.dumps({"tensors": tensors}))
    _, loop = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    exec(compile(loop, "README.md", "exec"), {})
    plan = plans.load("plan.json")
    assert capsys.readouterr().out.startswith(
        "simulated: step of 4 ranks under the fusion plan by 'cupcake' takes "
    )
    assert plan.predicted_step_s > 0


@pytest.mark.dist
def test_the_example_trains_on_two_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = graph.load("block:nodes=600,classes=4,noise=1.0", seed=1)
    graph.save_parts(data, graph.partition(data, 2), tmp_path / "parts")
    script = str(ROOT / "examples" / "your_own_model.py")
    said = train(script, "--parts", "parts", "--mode", "uniform-8", "--steps", "10")
    assert "test accuracy over all ranks" in said[-1]


@pytest.mark.dist
@pytest.mark.slow
def test_the_readme_trains_on_two_ranks(tmp_path, monkeypatch, wirewise_data):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(wirewise_data / "Planetoid" / "Cora" / "raw", tmp_path / "data" / "Cora" / "raw")
    code, _ = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    training, end, rest = code.partition("dist.destroy_process_group()")
    (tmp_path / "train.py").write_text(training + SCORE + end + rest)
    # Seven classes; a model that has learnt nothing gets a third at most.
    assert float(train("train.py")[-1]) > 0.6
