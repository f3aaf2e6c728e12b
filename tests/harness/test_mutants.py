"""Mutants change one thing each, and tests kill them or do not."""

import ast
import json
from pathlib import Path

import pytest

from tests.harness import mutants

SOURCE = '''
"""Docstring with 1 number."""
LIMIT: int = 3


def share(values, least=2):
    """Sum of 1 and more."""
    if not values:
        raise ValueError(f"got {len(values) + 1}")
    total = 0
    for value in values:
        total += value
    return total if total < LIMIT and least else max(values)
'''


def test_one_thing_changes_in_each_mutant():
    found = list(mutants.mutants(SOURCE))
    assert [one.change for one in found] == [
        "3 to 4",
        "2 to 3",
        "0 to 1",
        "Add to Sub",
        "statement dropped",
        "And to Or",
        "Lt to LtE",
        "max to min",
    ]
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    for one in found:
        after = one.source.splitlines()
        assert len(after) == len(before) and sum(a != b for a, b in zip(after, before, strict=True)) == 1
    assert [one.line for one in found] == [3, 6, 10, 12, 12, 13, 13, 13]


@pytest.fixture
def tree(tmp_path) -> Path:
    """A library of one module, half of which is tested."""
    for folder in ("src/wirewise/room", "tests/room"):
        (tmp_path / "tree" / folder).mkdir(parents=True)
    root = tmp_path / "tree"
    for folder in ("src/wirewise", "src/wirewise/room"):
        (root / folder / "__init__.py").write_text("")
    (root / "src/wirewise/room/sums.py").write_text(
        "def twice(x):\n    return x + x\n\n\ndef never():\n    return 7\n"
    )
    (root / "tests/room/test_sums.py").write_text(
        "from wirewise.room.sums import twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n"
    )
    return root


def test_tests_are_found_by_name(tree):
    assert mutants.tests_of("wirewise/room/sums.py", tree) == ["tests/room/test_sums.py"]
    (tree / "tests/room/test_sums.py").rename(tree / "tests/room/test_others.py")
    assert mutants.tests_of("wirewise/room/sums.py", tree) == ["tests/room/test_others.py"]


def test_survivors_are_told_and_a_run_resumes(tree, tmp_path, capsys, monkeypatch):
    command = ["--only", "wirewise/room/sums.py", "--out", str(tmp_path / "kept.jsonl"), "--limit-s", "300"]
    assert mutants.main(command, tree) == 1
    said = capsys.readouterr().out
    assert "survived     wirewise/room/sums.py:6  7 to 8\n1 of 2 mutants survived" in said
    assert (tree / "src/wirewise/room/sums.py").read_text().endswith("return 7\n")

    def run_tests(*_):
        raise AssertionError("ran again")

    monkeypatch.setattr(mutants, "run_tests", run_tests)
    assert mutants.main(command, tree) == 1
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert sorted(line[3] for line in kept) == ["killed", "survived"]
    (tmp_path / "kept.jsonl").write_text(
        json.dumps([*kept[0][:3], "killed"]) + "\n" + json.dumps([*kept[1][:3], "killed"])
    )
    assert mutants.main(command, tree) == 0


def test_a_mutant_that_hangs_is_killed_in_time(tree):
    hangs = mutants.Mutant(2, "hangs", "def twice(x):\n    while True:\n        pass\n")
    outcome = mutants.judge(tree, "wirewise/room/sums.py", hangs, 3.0, "not slow")
    assert outcome.verdict == "out of time"


def test_a_seed_chooses_the_same_mutants(tree):
    first, again = (mutants.chosen(["wirewise/room/sums.py"], 5, 4, tree) for _ in range(2))
    assert first == again and len(first) == 2
