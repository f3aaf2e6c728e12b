"""Published pages and the texts that quote them agree, and edits that break this are noticed."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.benchmarks.test_benchmarks import load

ROOT = Path(__file__).parents[2]
RECORDED = 117
"""Pages from before there were seals; their number only falls."""


@pytest.fixture(scope="module")
def guard() -> Iterator[ModuleType]:
    """Loaded once: it remembers the tables of pages."""
    with pytest.MonkeyPatch.context() as patch:
        yield load(patch, "guard")


def copied(folder: Path) -> Path:
    """What the guard reads, in a tree of its own."""
    shutil.copytree(ROOT / "benchmarks" / "results", folder / "benchmarks" / "results")
    shutil.copytree(ROOT / "docs" / "howto", folder / "docs" / "howto")
    shutil.copy(ROOT / "README.md", folder)
    for path in [*(ROOT / "docs").glob("acceptance*.md"), *(ROOT / "docs").glob("*.toml")]:
        shutil.copy(path, folder / "docs")
    return folder


def test_pages_and_the_texts_that_quote_them_agree(guard):
    tree = guard.Tree()
    assert list(tree.faults()) == []
    judged = [one for stem, page in tree.pages.items() for one in guard.verdicts.judgements(stem, page)]
    quoted = [figure for quote in tree.quotes() for figure in guard.figures(quote.text)]
    assert len(judged) > 1800 and len(quoted) > 500


def test_no_page_is_added_without_a_seal(guard):
    tree = guard.Tree()
    assert tree.records.keys() <= tree.pages.keys() and len(tree.records) <= RECORDED


def test_a_flipped_verdict_is_noticed(guard):
    """But for figures that lie on their threshold, as far as they are printed."""
    flip = {"holds": "FAILS", "FAILS": "holds"}
    unseen = total = 0
    for page in guard.Tree().pages.values():
        script = guard.seals.script_of(page).split("/")[1]
        flipped = re.sub(r"\b(holds|FAILS)\b", lambda match: flip[match[0]], page)
        found = [judgement.right for judgement in guard.verdicts.judgements(script, flipped)]
        unseen, total = unseen + sum(map(bool, found)), total + len(found)
    assert unseen <= 0.01 * total


RESULTS = "benchmarks/results/"
GOODPUT = f"{RESULTS}recovery_goodput_2x-xeon_202611.md"
SPLIT = f"{RESULTS}pipelines_split_2x-xeon_202611.md"
EDITS = {
    "a figure that no longer holds": (GOODPUT, "| 0.856 |", "| 0.756 |", "holds' is not what 0.756 gives"),
    "a verdict": (SPLIT, ">= 0.08: FAILS", ">= 0.08: holds", "holds' is not what 4.9% gives"),
    "a figure that was missed": (SPLIT, "| 10.2% |", "| 7.2% |", "FAILS' is not what 7.2% gives"),
    "a threshold and its verdict": (
        SPLIT,
        ">= 0.08: FAILS",
        ">= 0.04: holds",
        "not those that the script wrote",
    ),
    "the load in a header": (
        GOODPUT,
        "at the start 10.4",
        "at the start 1.4",
        "not those that the script wrote",
    ),
    "a line of a header": (
        GOODPUT,
        "- Preset: paper",
        "- Preset: paper\n- Repeats: 9",
        "not those that the script",
    ),
    "a figure behind a quote": (
        f"{RESULTS}run_adaqp_debian_100mbit_2x-xeon_202611.md",
        "| 3.57x |",
        "| 3.27x |",
        "README.md: 3.57 times is not what run_adaqp",
    ),
    "a figure of the README": ("README.md", "3.57 times", "4.57 times", "README.md: 4.57 times is not known"),
    "a figure of a how-to": (
        "docs/howto/compare-recovery.md",
        "0.51 s",
        "0.31 s",
        "compare-recovery.md: 0.31 s is not known",
    ),
    "a figure of a system": (
        "docs/systems.toml",
        "91.2 %",
        "95.2 %",
        "systems.toml disco: 95.2 % is not known",
    ),
    "a figure of a row": (
        "docs/acceptance-recovery.md",
        "(0.312, `recovery`)",
        "(0.212, `recovery`)",
        "acceptance-recovery.md R4: 0.212 is not known",
    ),
    "a figure that is not the largest": (
        "docs/acceptance-recovery.md",
        "at most 9.0 %",
        "at most 8.3 %",
        "acceptance-recovery.md R10: at most 8.3 % is not known",
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_planted_edit_is_noticed(guard, tmp_path, edit):
    file, before, after, message = edit
    path = copied(tmp_path) / file
    text = path.read_text()
    assert text.count(before) >= 1
    path.write_text(text.replace(before, after))
    assert any(message in fault for fault in guard.Tree(tmp_path).faults())


@pytest.mark.parametrize("said", ["3.8 %", "8.3 %"], ids=["on the page", "on no page"])
def test_what_is_not_the_largest_is_not_quoted_as_the_most(guard, tmp_path, said):
    """Looking for the places of new figures does not find one for it."""
    path = copied(tmp_path) / "docs" / "acceptance-recovery.md"
    path.write_text(path.read_text().replace("at most 9.0 %", f"at most {said}"))
    tree = guard.Tree(tmp_path)
    assert not any("R10" in line for line in tree.look_for_quotes())
    assert any(f"R10: at most {said} is not known" in fault for fault in tree.faults())


def test_new_figures_are_looked_for_on_their_pages(guard, tmp_path):
    quotes = copied(tmp_path) / guard.QUOTES
    before = quotes.read_text()
    quotes.write_text(before.replace('"3.57 times": ', '"3.58 times": '))
    tree = guard.Tree(tmp_path)
    (added,) = tree.look_for_quotes()
    assert added.startswith("README.md: 3.57 times is run_adaqp_debian_100mbit")
    assert quotes.read_text() == before and list(tree.faults()) == []


SCRIPT = """
import common
from wirewise.part import measured

def main():
    page = common.Page("T", "paper", {})
    with page.table("figure", "claim") as row:
        row(0.9, common.verdict(0.9, least=0.8))
    page.finish(common.basic_parser("T").parse_args())
"""


@pytest.fixture
def small(tmp_path) -> Path:
    """A tree with a script and a package of the library that it measures."""
    (tmp_path / "benchmarks" / "small").mkdir(parents=True)
    (tmp_path / "benchmarks" / "small" / "run.py").write_text(SCRIPT)
    package = tmp_path / "src" / "wirewise" / "part"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        '"""A part."""\n\nLIMIT = 3  # of all\n\n\ndef measured():\n    return LIMIT\n'
    )
    (tmp_path / "src" / "wirewise" / "other.py").write_text("LIMIT = 3\n")
    return tmp_path


@pytest.fixture
def seals(guard):
    """A function that returns the module with empty caches, for files that change."""

    def forget():
        for function in (
            guard.seals.measured_code,
            guard.seals._imports,
            guard.seals._code_of,
            guard.seals._digest_of,
        ):
            function.cache_clear()
        return guard.seals

    return forget


def test_a_page_is_as_old_as_the_code_that_it_measured(seals, small):
    script, part = "benchmarks/small", small / "src" / "wirewise" / "part" / "__init__.py"
    seal = seals().seal_of(seals().sealed("# T", "abc", seals().measured_code(script, small)))
    assert seal.code.keys() == {script, "wirewise.part"} and seal.commit == "abc"

    part.write_text(part.read_text().replace("A part.", "A part of it."))
    (small / "src" / "wirewise" / "other.py").write_text("LIMIT = 4\n")
    assert seals().changed_since(seal, script, small) == []

    part.write_text(part.read_text().replace("LIMIT = 3", "LIMIT = 4"))
    assert seals().changed_since(seal, script, small) == ["wirewise.part"]

    (part.parent / "weights.npz").write_bytes(b"0")
    (small / script / "jobs.py").write_text("JOBS = 2\n")
    assert seals().changed_since(seal, script, small) == [script, "wirewise.part"]

    shutil.rmtree(part.parent)
    assert seals().changed_since(seal, script, small) == [script, "wirewise.part"]


def test_what_an_experiment_imports_is_measured_too(seals, small):
    papers = small / "src" / "wirewise_papers"
    papers.mkdir()
    (papers / "it.py").write_text("from wirewise import other\n")
    (small / "benchmarks" / "small" / "run.py").write_text("from wirewise_papers.it import train\n")
    found = seals().measured_code("benchmarks/small", small)
    assert found.keys() == {"benchmarks/small", "wirewise_papers.it", "wirewise.other"}


def test_a_page_that_a_script_writes_is_sealed(guard, monkeypatch, tmp_path, capsys):
    common = load(monkeypatch, "common")
    monkeypatch.setattr(
        sys, "argv", [str(ROOT / "benchmarks" / "quantize_kernels" / "run.py"), "--preset", "paper"]
    )
    monkeypatch.setattr(common.os, "nice", lambda step: 0)
    page = common.Page("T", "paper", {"Threads": "1"})
    with page.table("figure", "claim") as row:
        row(0.9, common.verdict(0.9, least=0.8))
    page.finish(common.basic_parser("T").parse_args(["--out", str(tmp_path / "page.md")]))
    text = (tmp_path / "page.md").read_text()
    assert re.search(r"^- Commit: (\w{12}\+?|unknown)$", text, re.MULTILINE)
    assert re.search(r"^- Priority: nice 0, \d+ processors allowed, (no|a) quota", text, re.MULTILINE)
    assert "benchmarks/quantize_kernels" in guard.seals.seal_of(text).code
    assert guard.seals.is_as_written(text, None)
    edits = {
        "| 0.9 |": "| 0.95 |",
        ">= 0.8": ">= 0.7",
        "nice 0": "nice 5",
        "Threads": "Ranks",
        "Whole script": "All",
    }
    for before, after in edits.items():
        assert before in text and not guard.seals.is_as_written(text.replace(before, after), None)


def test_pages_that_are_older_than_their_code_are_listed(guard, monkeypatch, small):
    """The build of the documentation draws the table; here of a page whose seal is of other code."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    monkeypatch.delitem(sys.modules, "page_ages", raising=False)
    ages = pytest.importorskip("page_ages", reason="sphinx draws the table")
    results = small / "benchmarks" / "results"
    results.mkdir()
    (small / "docs").mkdir()
    for name in ("docs/figures.toml", "benchmarks/results/records.json", "benchmarks/results/quotes.json"):
        (small / name).write_text("" if name.endswith("toml") else "{}")
    text = "# T, 2026-11-30\n\n- Command: `python benchmarks/small/run.py`"
    code = guard.seals.measured_code("benchmarks/small", small)
    (results / "new_202611.md").write_text(guard.seals.sealed(text, "abc", code))
    (results / "old_202611.md").write_text(guard.seals.sealed(text, "abc", code | {"wirewise.part": "0"}))
    monkeypatch.setattr(ages.guard, "Tree", lambda tree=guard.Tree: tree(small))
    assert ages.rows()[2:] == ["| `old_202611` | 2026-11-30, abc | `wirewise.part` | - |"]
