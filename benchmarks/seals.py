"""Seals of published pages: what a script wrote, and the code that it measured.

A page that `common.Page` writes ends with its seal, a comment with digests of the page and of the measured code.
Pages from before there were seals have theirs in `benchmarks/results/records.json`, with digests of their headers
and tables; no page is added there. Neither asks for the history of the repository.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RECORDS = RESULTS / "records.json"
PACKAGES = ("wirewise", "wirewise_papers")
_SEAL = re.compile(r"\n<!-- sealed: commit (\S+), page (\w+), code (.*) -->\n$")
_SCRIPT = re.compile(r"benchmarks/(\w+(?:/\w+)?)/run\.py")
_COMMAND = re.compile(r"wirewise run ([\w-]+)")


class Seal(NamedTuple):
    """Digests that go with a page."""

    commit: str
    """Commit of the code; a plus at its end: the tree had changes."""
    page: str
    """Digest of the page; of its header and tables if the page is from before there were seals."""
    code: dict[str, str]
    """Digests of the script and of the packages and modules that it imports."""
    by_hand: tuple[str, ...] = ()
    """Lines of the header that no script writes today; none of a page with a seal."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def script_of(page: str) -> str:
    """Script that wrote a page: a folder of `benchmarks`, or a package of `wirewise_papers`.

    Raises:
        ValueError: The page names neither.
    """
    if found := _SCRIPT.search(page):
        return f"benchmarks/{found[1]}"
    if found := _COMMAND.search(page):
        return f"src/wirewise_papers/{found[1].replace('-', '_')}"
    raise ValueError("the page names no script in benchmarks/ and no `wirewise run NAME`")


@cache
def measured_code(script: str, root: Path = ROOT) -> dict[str, str]:
    """Digest the files of a script, and every package and module of the library that they import.

    Args:
        script: Folder, as `script_of` gives it.
        root: Tree with `benchmarks` and `src`.

    Returns:
        Digests by the name of the folder, package or module. Comments, docstrings and empty lines do not count.
    """
    folder = root / script
    own = list(_closure(folder, root))
    code = {script: digest("\n".join(map(_code_of, own)))}
    names: set[str] = set()
    waiting = [name for file in own for name in _library_imports(file, root)]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            if name.startswith("wirewise_papers."):
                # An experiment stands between a script and what is measured.
                waiting += (other for file in _files_of(name, root) for other in _library_imports(file, root))
    for name in sorted(names):
        # A package has its modules with it.
        if not any(name.startswith(f"{other}.") for other in names):
            code[name] = _digest_of(_path_of(name, root))
    return code


def _files_of(name: str, root: Path) -> list[Path]:
    path = _path_of(name, root)
    assert path is not None
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _closure(folder: Path, root: Path) -> Iterator[Path]:
    """Files of a script, and those of `benchmarks` that they import."""
    waiting, seen = sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for module in _imports(file):
            path = root / "benchmarks" / f"{module.partition('.')[0]}.py"
            # What writes and judges pages measures nothing.
            if path.exists() and path.stem not in ("common", "seals", "verdicts", "guard"):
                waiting.append(path)
    yield from sorted(seen)


def _library_imports(file: Path, root: Path) -> Iterator[str]:
    for name in _imports(file):
        if name.partition(".")[0] in PACKAGES and "." in name:
            while _path_of(name, root) is None and "." in name:
                name = name.rpartition(".")[0]
            if "." in name:
                yield name


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """Full names that a file imports: "a.b" for "from a import b"."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def _path_of(name: str, root: Path) -> Path | None:
    path = root / "src" / Path(*name.split("."))
    return path if path.is_dir() else file if (file := path.with_suffix(".py")).exists() else None


@cache
def _digest_of(path: Path | None) -> str:
    assert path is not None
    if path.is_file():
        return digest(_code_of(path))
    parts = [f"{file.relative_to(path)}\n{_code_of(file)}" for file in sorted(path.rglob("*.py"))]
    # Weights are measured with the code that reads them.
    parts += [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.rglob("*.npz"))]
    return digest("\n".join(parts))


@cache
def _code_of(file: Path) -> str:
    """Lines of a file without comments of their own, docstrings and empty lines."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                last = first.end_lineno or first.lineno
                lines[first.lineno - 1 : last] = [""] * (last - first.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def header(page: str) -> str:
    """Lines above the first section and the first table: hardware, versions, command, conditions."""
    return re.split(r"^(?:## |\|)", page, maxsplit=1, flags=re.MULTILINE)[0]


def figures(page: str) -> str:
    """Header and tables of a page, without its prose."""
    return "\n".join([header(page), *(line for line in page.splitlines() if line.startswith("|"))])


def sealed(page: str, commit: str, code: dict[str, str]) -> str:
    """A page with its seal at the end."""
    page = page.rstrip("\n") + "\n"
    named = " ".join(f"{name}={value}" for name, value in code.items())
    return f"{page}\n<!-- sealed: commit {commit}, page {digest(page)}, code {named} -->\n"


def seal_of(page: str) -> Seal | None:
    """Seal at the end of a page; None if it has none."""
    match = _SEAL.search(page)
    if match is None:
        return None
    code = dict(part.split("=", 1) for part in match[3].split())
    return Seal(match[1], match[2], code)


def records(file: Path = RECORDS) -> dict[str, Seal]:
    """Records of the pages from before there were seals, by name."""
    return {name: Seal(**one) for name, one in json.loads(file.read_text()).items()}


def commit() -> str:
    """Commit of the tree, with a plus if code has changed since; "unknown" without a history."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "unknown"
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "src", ":(glob)benchmarks/**/*.py"],
        capture_output=True,
        text=True,
    )
    return head.stdout.strip() + "+" * bool(changed.stdout.strip())


def write_records(found: dict[str, Seal], file: Path = RECORDS) -> None:
    """Write records, one page a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(one._asdict())}" for name, one in sorted(found.items())]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def is_as_written(page: str, record: Seal | None) -> bool:
    """Whether a page is what its script wrote: by its seal, or else by its record."""
    seal = seal_of(page)
    if seal is not None:
        return digest(_SEAL.sub("", page)) == seal.page
    return record is not None and digest(figures(page)) == record.page


def changed_since(seal: Seal, script: str, root: Path = ROOT) -> list[str]:
    """Names of what a page measured whose code has changed, moved or gone since."""
    now = measured_code(script, root)
    return sorted(name for name, value in seal.code.items() if now.get(name) != value)
