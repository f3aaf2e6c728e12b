"""No committed text depends on where it was written; documentation is phrases or sentences in the field's words."""

import ast
import functools
import re
import subprocess
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


RIDDLE = re.compile(r"(What|Whose|By which|In which)\b")
"""First words of a docstring that names nothing."""
FIELDS_WORDS = {
    "elementwise": r"\bplace by place\b",
    "interleaved": r"\bby turns\b",
    "partial sums": r"\baddends?\b",
    "stops responding": r"\bfalls? silent\b",
    "dead or hung ranks": r"\bwho dies\b",
    "compared with": r"\bnext to (torch|DDP|checkpoints|torchft|torchrun|gloo|fp32)",
    "update, event": r"\bnews of\b",
    "one per host": r"\bone a host\b",
}
"""Words of the field, and what was written in their place."""


@functools.cache
def documentation_of_source() -> list[tuple[Path, int, str]]:
    """File, line and text of all documentation of the library and its papers."""
    return [
        (path, number, text)
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, text in documentation(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_docstrings_name_a_thing_or_an_action():
    bad = [
        f"{path.relative_to(ROOT)}:{number}: {text.strip().splitlines()[0]}"
        for path, number, text in documentation_of_source()
        if RIDDLE.match(text.strip())
    ]
    assert bad == []
    assert RIDDLE.match("What it sends.") and not RIDDLE.match("Whatever it sends.")


@pytest.mark.parametrize("word", FIELDS_WORDS)
def test_texts_use_the_words_of_the_field(word):
    pattern = re.compile(FIELDS_WORDS[word])
    pages = [(path, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "docs").rglob("*.md"))]
    sources = [(path, text) for path, _, text in documentation_of_source()]
    bad = [
        f"{path.relative_to(ROOT)}: {found[0]!r}, write {word!r}"
        for path, text in (*pages, *sources)
        for found in pattern.finditer(text)
    ]
    assert bad == []


RECURRING = {
    "execute": r"\b[Cc]arr(?:y|ies|ied|ying) out\b(?! of\b)",
    "errors as in": r"\b(?:[Aa]rguments|errors)(?: and\s+errors)? as of\b",
    "None if": r"[;,] None: (?:it|there|nothing|no)\b",
    "fraction of": r"\A(?:A share|Share) of\b|\bas a share of\b|: Share of\b",
}
"""Forms of docstrings that recur, and what was written in their place."""


@pytest.mark.parametrize("word", RECURRING)
def test_docstrings_say_what_recurs_in_one_form(word):
    pattern = re.compile(RECURRING[word])
    bad = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]!r}, write {word!r}"
        for path, number, text in documentation_of_source()
        for found in pattern.finditer(text)
    ]
    assert bad == []


NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`(?!`)")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
OF_OTHERS = {
    "accelerate.Accelerator",
    "GlobalMetadata",  # Chakra
    "NCCL_TOPO_FILE",
    "TilingSelect",  # torch.compile's
    "should_realize_on_reuse",
    "accelerator.load_state",
    "accelerator.save_state",
    "blockAllReduce",  # a kernel of TensorRT-LLM
    "gcn_norm",  # PyG's
    "torch.distributed.Work",
    "__pycache__",
    "h_l",  # symbols of the formula of `graph.memory`
    "m_l",
    "w_l",
}
"""Names in documentation that other projects, or formulas, define."""


@functools.cache
def identifiers() -> dict[tuple[str, ...], set[str]]:
    """Identifiers in the code of each module, without its documentation, by the parts of the module's path."""
    return {
        path.relative_to(ROOT / "src").with_suffix("").parts: {
            *IDENTIFIER.findall(re.sub(r'"""[\s\S]*?"""', "", path.read_text(encoding="utf-8"))),
            *path.relative_to(ROOT / "src").with_suffix("").parts,
        }
        for path in sorted((ROOT / "src").rglob("*.py"))
    }


@functools.cache
def everywhere() -> set[str]:
    """Identifiers of all modules."""
    return set().union(*identifiers().values())


def is_defined(name: str) -> bool:
    """Whether the code has every part of a dotted name, and the module or package before a class has the class."""
    parts, modules = name.split("."), identifiers()
    if not all(part in everywhere() for part in parts):
        return False
    homes = [found for path, found in modules.items() if len(parts) > 1 and parts[-2] in path]
    return not (homes and parts[-1][0].isupper()) or any(parts[-1] in found for found in homes)


def test_documentation_names_what_exists():
    names = {
        (name, str(path.relative_to(ROOT)))
        for path, _, text in documentation_of_source()
        for name in NAME.findall(text)
    }
    known = {name: name in OF_OTHERS or is_defined(name) for name in {name for name, _ in names}}
    assert sorted(one for one in names if not known[one[0]]) == []
    assert is_defined("trying.TrialMeasurements")
    assert not is_defined("trying.Tried") and not is_defined("no_such_name")
