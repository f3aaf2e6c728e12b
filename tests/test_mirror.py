"""Tests lie beside what they test: `tests/a/test_b.py` for `src/wirewise/a/b.py`, `tests/test_a.py` for a package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = [
    path.relative_to(ROOT / "src" / "wirewise")
    for path in (ROOT / "src" / "wirewise").rglob("*.py")
    if not path.name.startswith("__")
]
LEAST_BY_MODULE, LEAST_BY_PACKAGE = 0.6, 0.7
"""Shares that stand; they may rise, never fall."""


def has_own_test(module: Path) -> bool:
    return (ROOT / "tests" / module.parent / f"test_{module.name}").exists()


def has_test_of_package(module: Path) -> bool:
    package = module.parent
    return (ROOT / "tests" / package.parent / f"test_{package.name}.py").exists()


def test_modules_have_a_test_of_their_name_at_the_same_path() -> None:
    own = sum(map(has_own_test, MODULES)) / len(MODULES)
    either = sum(has_own_test(one) or has_test_of_package(one) for one in MODULES) / len(MODULES)
    assert own >= LEAST_BY_MODULE and either >= LEAST_BY_PACKAGE, (
        f"{own:.1%} of modules have a test at the same path, {either:.1%} that or one of their package; "
        f"expected at least {LEAST_BY_MODULE:.0%} and {LEAST_BY_PACKAGE:.0%}"
    )
