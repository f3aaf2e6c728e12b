"""No committed text depends on where it was written; documentation is phrases or sentences; class names are unique."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Written in pieces, so that this file passes its own test.
HOMES = "|".join(["/" + "work/", "/" + r"home/\w+/", "/" + "root/", "/" + r"Users/\w+/"])
PRIVATE = re.compile(rf"(?<![\w.])({HOMES})")


def committed_files() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def texts() -> dict[Path, str]:
    found = {}
    for path in committed_files():
        if path.is_file():
            content = path.read_bytes()
            if b"\0" not in content:
                found[path] = content.decode("utf-8")
    return found


def test_no_text_holds_a_private_path():
    found = [f"{p.relative_to(ROOT)}: {m[0]}" for p, text in texts().items() for m in PRIVATE.finditer(text)]
    assert found == []


def test_the_pattern_finds_private_paths():
    assert PRIVATE.search("see /" + "root/notes") and PRIVATE.search("cd /" + "work/main")
    assert not PRIVATE.search("framework/main and ../work/x")


def test_text_files_end_with_one_line_feed():
    bad = [
        str(p.relative_to(ROOT))
        for p, t in texts().items()
        if t and (not t.endswith("\n") or t.endswith("\n\n"))
    ]
    assert bad == []


SOURCE = ROOT / "src" / "wirewise"
DOCUMENTED = ("src", "benchmarks", "examples", "tests")
NO_BEGINNING = ("Of ", "That ", "As ", "With ", "By ", "The same", "From ", "For ", "In ", "To ", "At ")
FRAGMENT = re.compile(
    r"[a-z]|(As|Its|Their|Those|They|Without|Who|So many|Such as|Behind|Beside|Kept)\b|None:"
)
ONE_WORD = re.compile(r"[A-Za-z-]+\.?")
LEAST_WORDS = 3
ARGUMENT = re.compile(r"\s*\*{0,2}(\w+): (.*)")


def hangs(text: str) -> bool:
    """Whether a text is a fragment of a sentence that stands elsewhere."""
    return text.startswith(NO_BEGINNING) or FRAGMENT.match(text) is not None


def documentation(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, docstring of an attribute, and help or description of an option."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        values = [part.value for part in body if isinstance(part, ast.Expr)] if isinstance(body, list) else []
        if isinstance(node, ast.keyword) and node.arg in ("help", "description"):
            values = [node.value]
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.lineno, value.value


def documented_arguments(text: str) -> list[tuple[str, str]]:
    """Name and text of every entry under "Args:" and "Attributes:"."""
    found: list[tuple[str, str]] = []
    margin, entries = -1, -1  # depth of the heading, and of the entries under it; -1: not under one
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        entry = ARGUMENT.fullmatch(line)
        if line.strip() in ("Args:", "Attributes:"):
            margin, entries = depth, -1
        elif margin < 0 or not line.strip():
            continue
        elif depth <= margin:
            margin = -1
        elif entry and entries in (-1, depth):
            entries = depth
            found.append((entry[1], entry[2]))
        elif found:
            name, words = found.pop()
            found.append((name, f"{words} {line.strip()}"))
    return found


def test_documentation_stands_alone():
    bad = []
    for path in (one for folder in DOCUMENTED for one in sorted((ROOT / folder).rglob("*.py"))):
        for number, text in documentation(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.relative_to(ROOT)}:{number}"
            if hangs(text.strip()) or ONE_WORD.fullmatch(text.strip().partition("\n\n")[0]):
                bad.append(f"{place}: {text.strip().splitlines()[0]}")
            arguments = documented_arguments(text)
            bad += [f"{place}: {n}: {w}" for n, w in arguments if len(w.split()) < LEAST_WORDS or hangs(w)]
    assert bad == []


def test_the_lint_finds_what_does_not_stand_alone():
    text = '''"""Of it.

    Args:
        size: Bytes.
        rank: Number of this
            rank.
    """'''
    ((_, found),) = documentation(ast.parse(text))
    assert (
        hangs(found)
        and hangs("rows of it")
        and hangs("None: all.")
        and not hangs("Rows")
        and ONE_WORD.fullmatch("Simulate.")
        and not ONE_WORD.fullmatch("[P]")
    )
    assert documented_arguments(found) == [("size", "Bytes."), ("rank", "Number of this rank.")]


# Arguments of compiled functions, whose cached code refers to them by name and module.
SHARED_NAMES = {"Links", "Network"}


def modules_of_classes(root: Path) -> dict[str, set[str]]:
    """Modules in which a class of each public name is defined."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(str(path.relative_to(root)))
    return found


def test_a_public_class_name_means_one_thing():
    shared = {name: places for name, places in modules_of_classes(SOURCE).items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SHARED_NAMES} == {}


def test_classes_of_one_name_are_found(tmp_path):
    (tmp_path / "a.py").write_text("class Rank: ...\nclass _Own: ...\n")
    (tmp_path / "b.py").write_text("class Rank: ...\nclass _Own: ...\nclass Host: ...\n")
    assert modules_of_classes(tmp_path) == {"Rank": {"a.py", "b.py"}, "Host": {"b.py"}}
