"""Change one thing in a module, and see whether its tests notice: python -m tests.harness.mutants --count 60 --seed 1

Each mutant has another operator, comparison, constant or name, or lacks a statement; a seed chooses it, and it runs in
a copy of the tree. It is killed if a test of its module fails or runs out of time. Tests are found by name. Outcomes
are kept in a file, and a run that is started again resumes from it. Exits with 1 if more than one in twenty survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MOST_SURVIVORS = 0.05
# The newer systems: jobs, deployment, recovery, moves between meshes, parallel plans, pipelines, sampling of steps.
ROOMS = (
    "wirewise/planners/jobs",
    "wirewise/planners/parallel",
    "wirewise/planners/pipeline",
    "wirewise/planners/placement",
    "wirewise/planners/recovery",
    "wirewise/planners/reshard",
    "wirewise/runtime/recovery",
    "wirewise/runtime/pipeline",
    "wirewise/sim",
)
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}
# What a reader of a message sees, and what only a type checker reads, is no behaviour.
_LEFT_ALONE = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)


class Mutant(NamedTuple):
    """A module with one change."""

    line: int
    change: str
    """Kind of the change, with what was and what is."""
    source: str


class Outcome(NamedTuple):
    """Verdict of the tests on a mutant."""

    module: str
    line: int
    change: str
    verdict: str
    """Either "killed", "out of time", "survived", or "not judged" if the tests fail without a change."""


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its syntax tree."""
    tree = ast.parse(source)
    for number, (node, change) in enumerate(_changes(tree)):
        changed = copy.deepcopy(tree)
        other = next(other for at, (other, _) in enumerate(_changes(changed)) if at == number)
        _apply(changed, other, change)
        yield Mutant(node.lineno, change, ast.unparse(ast.fix_missing_locations(changed)))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Nodes that can be changed, with the change."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _LEFT_ALONE):
            continue
        if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _OPERATORS:
            yield node, f"{type(node.op).__name__} to {_OPERATORS[type(node.op)].__name__}"
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
            yield node, f"{type(node.ops[0]).__name__} to {_OPERATORS[type(node.ops[0])].__name__}"
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, f"{node.value!r} to {_other(node.value)!r}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            yield node, f"{node.func.id} to {_NAMES[node.func.id]}"
        if isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield node, "statement dropped"
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from _changes(ast.Expression(node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Not its decorators and annotations.
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                yield from _changes(ast.Expression(default))
            yield from _changes(ast.Module(node.body, []))
        else:
            yield from _changes(node)


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 1.1 or 0.1


def _apply(tree: ast.Module, node: ast.stmt | ast.expr, change: str) -> None:
    if change == "statement dropped":
        _replace(tree, node)
    elif isinstance(node, ast.Constant):
        assert isinstance(node.value, int | float)
        node.value = _other(node.value)
    elif isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        node.func.id = _NAMES[node.func.id]
    elif isinstance(node, ast.Compare):
        node.ops[0] = _OPERATORS[type(node.ops[0])]()  # type: ignore[assignment]
    else:
        assert isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp)
        node.op = _OPERATORS[type(node.op)]()  # type: ignore[assignment]


def _replace(tree: ast.Module, dropped: ast.AST) -> None:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and any(one is dropped for one in statements):
                statements[:] = [ast.Pass() if one is dropped else one for one in statements]


def tests_of(module: str, root: Path = ROOT) -> list[str]:
    """Test files of a module by name: tests/A/test_B.py of A/B.py, or else those of its package that import it.

    Args:
        module: Path below `src`, such as "wirewise/sim/sampled.py".
        root: Tree with `src` and `tests`.
    """
    path = Path(module).relative_to("wirewise")
    named = root / "tests" / path.parent / f"test_{path.stem.lstrip('_')}.py"
    if named.exists():
        return [str(named.relative_to(root))]
    folder = root / "tests" / path.parent
    dotted, stem = ".".join(Path(module).with_suffix("").parts), path.stem
    return [
        str(file.relative_to(root))
        for file in sorted(folder.rglob("test_*.py"))
        if dotted in (text := file.read_text(encoding="utf-8")) or f"import {stem}" in text
    ]


def chosen(modules: Sequence[str], count: int, seed: int, root: Path = ROOT) -> list[tuple[str, Mutant]]:
    """Mutants that a seed chooses: modules alternate in a random order, and each gives another mutant."""
    dice = random.Random(seed)
    order = dice.sample(list(modules), len(modules))
    left = {
        module: dice.sample(found, len(found))
        for module in order
        if (found := list(mutants((root / "src" / module).read_text(encoding="utf-8"))))
    }
    result: list[tuple[str, Mutant]] = []
    while any(left.values()) and len(result) < count:
        for module, found in left.items():
            if found and len(result) < count:
                result.append((module, found.pop()))
    return result


def run_tests(tree: Path, tests: Sequence[str], limit_s: float, marker: str) -> str:
    """Run tests in a copy of the tree: "passed", "failed" or "out of time"."""
    # Options of the outer pytest may name plugins that are not in this tree.
    own = {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_ADDOPTS": ""}
    environment = {**os.environ, **own}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marker, *tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "out of time"
    # 5: the marker leaves no test.
    return "passed" if code in (0, 5) else "failed"


def judge(tree: Path, module: str, mutant: Mutant, limit_s: float, marker: str) -> Outcome:
    """Run the tests of a module with a mutant in its place, and put the module back."""
    path = tree / "src" / module
    source = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        result = run_tests(tree, tests_of(module, tree), limit_s, marker)
    finally:
        path.write_text(source, encoding="utf-8")
    verdict = {"passed": "survived", "failed": "killed"}.get(result, result)
    return Outcome(module, mutant.line, mutant.change, verdict)


def table(outcomes: Sequence[Outcome]) -> str:
    """Outcomes as lines, survivors last, with their share of what was judged."""
    lines = [
        f"{one.verdict:12} {one.module}:{one.line}  {one.change}"
        for one in sorted(outcomes, key=lambda one: (one.verdict == "survived", one))
    ]
    judged = [one for one in outcomes if one.verdict != "not judged"]
    return "\n".join([*lines, f"{_survivors(outcomes)} of {len(judged)} mutants survived"])


def _survivors(outcomes: Sequence[Outcome]) -> int:
    return sum(one.verdict == "survived" for one in outcomes)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Judge the mutants of the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="Number of mutants. Defaults to 60.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the choice.")
    parser.add_argument(
        "--only", nargs="*", help="Modules below src. Defaults to those of the newer systems."
    )
    parser.add_argument("--limit-s", type=float, default=600.0, help="Seconds for the tests of one mutant.")
    parser.add_argument(
        "--marker", default="not slow and not lab and not browser and not gpu", help="Tests to run."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("mutants.jsonl"), help="File that keeps the outcomes."
    )
    options = parser.parse_args(arguments)
    modules = options.only or [
        str(path.relative_to(root / "src"))
        for room in ROOMS
        for path in sorted((root / "src" / room).rglob("*.py"))
        if tests_of(str(path.relative_to(root / "src")), root)
    ]
    kept = options.out.read_text().splitlines() if options.out.exists() else []
    done = {one[:3]: one for one in (Outcome(*json.loads(line)) for line in kept)}
    outcomes: list[Outcome] = []
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="wirewise-mutants-") as folder:
        tree = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".venv", ".git", "_build", "__pycache__", ".*_cache")
        shutil.copytree(root, tree, ignore=left_out, symlinks=True)
        for module, mutant in chosen(modules, options.count, options.seed, root):
            key = (module, mutant.line, mutant.change)
            if key not in done:
                if module not in sound:
                    tests = tests_of(module, tree)
                    sound[module] = (
                        bool(tests) and run_tests(tree, tests, options.limit_s, options.marker) == "passed"
                    )
                done[key] = (
                    judge(tree, module, mutant, options.limit_s, options.marker)
                    if sound[module]
                    else Outcome(*key, "not judged")
                )
                with options.out.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
                print(f"{done[key].verdict}: {module}:{mutant.line} {mutant.change}", flush=True)
            outcomes.append(done[key])
    print(table(outcomes))
    judged = sum(one.verdict != "not judged" for one in outcomes)
    return int(not judged or _survivors(outcomes) > MOST_SURVIVORS * judged)


if __name__ == "__main__":
    sys.exit(main())
