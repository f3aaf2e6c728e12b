"""A threshold that a published page missed is told in a row of the acceptance tables, with its figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
COMMAND = re.compile(r"benchmarks/(\w+)/run\.py(?:[^`]*?--only ([\w,-]+))?")


class Acceptance(NamedTuple):
    """One id of an acceptance table."""

    file: str
    id: str
    claim: str
    scripts: tuple[tuple[str, frozenset[str]], ...]
    """Benchmarks that show it, and their rows; no row: all."""

    @property
    def missed(self) -> set[float]:
        """Figures after "not reached"."""
        return {figure for clause in self.claim.split("not reached")[1:] for figure in figures(clause)}


def figures(text: str) -> set[float]:
    return {float(number.replace(",", "")) for number in NUMBER.findall(text)}


def commands(text: str) -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((name, frozenset(filter(None, rows.split(",")))) for name, rows in COMMAND.findall(text))


def acceptances() -> list[Acceptance]:
    found = []
    for path in sorted((ROOT / "docs").glob("acceptance*.md")):
        for line in path.read_text().splitlines():
            if line.startswith("| ") and not line.startswith(("| id |", "| ---")):
                id_, *claim, place = (cell.strip() for cell in line.strip().strip("|").split(" | "))
                found.append(Acceptance(path.name, id_, " ".join(claim), commands(place)))
    return found


ACCEPTANCES = acceptances()


def failures(page: str) -> dict[str, list[str]]:
    """Lines of tables with missed thresholds, by threshold."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        for threshold in re.findall(r"[<>]= [\d.e-]+(?: and [^|:;]*)?(?=: FAILS)", line):
            found.setdefault(threshold, []).append(line)
    return found


def rows_of(page: str) -> list[Acceptance]:
    """Acceptances that the script of a page shows."""
    asked = commands(page)[:1]
    return [
        one
        for one in ACCEPTANCES
        for script, own in one.scripts
        for name, rows in asked
        if script == name and (not own or not rows or own & rows)
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_a_page_missed_is_told_in_an_acceptance_row(path: Path) -> None:
    page = path.read_text()
    untold = []
    for threshold, lines in failures(page).items():
        # The threshold itself is no figure.
        printed = figures(" ".join(re.sub(r"[<>]= [^|:]*: (FAILS|holds)", "", line) for line in lines))
        if not any(one.missed & printed for one in rows_of(page)):
            untold += [f"{threshold}:", *lines]
    assert not untold, "no acceptance row says 'not reached' with a figure of:\n" + "\n".join(untold)


MISSED = [one for one in ACCEPTANCES if one.missed and one.scripts]
CLAUSES = [(one, clause) for one in MISSED for clause in one.claim.split("not reached")[1:]]


def pages_of(one: Acceptance, clause: str) -> list[str]:
    """The page that the clause names, or all that the scripts of the row have written."""
    named = re.search(r"\(`(\w[\w-]+)`\)", clause)
    if named:
        # A page's name ends with the machine and the month.
        whole = re.compile(rf"{named[1]}(_\d+x-\w+)?_\d+")
        return [path.read_text() for path in PAGES if whole.fullmatch(path.stem)]
    return [text for path in PAGES if one in rows_of(text := path.read_text())]


@pytest.mark.sweep
@pytest.mark.parametrize(("one", "clause"), CLAUSES, ids=lambda value: getattr(value, "id", ""))
def test_a_figure_that_is_not_reached_is_published(one: Acceptance, clause: str) -> None:
    pages = pages_of(one, clause)
    assert pages, f"{one.file}, {one.id}: no such page: 'not reached{clause}'"
    told = clause.split("(`")[0] if "(`" in clause else clause
    assert figures(told) & figures(" ".join(pages)), (
        f"{one.file}, {one.id}: not on the page: 'not reached{clause}'"
    )


@pytest.mark.sweep
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_counts_its_missed_thresholds(path: Path) -> None:
    page = path.read_text()
    told = [
        int(number)
        for line in page.splitlines()
        if "Thresholds that were not met" in line
        # A page of two runs tells both counts: "0; of the day before, 42 s and 1".
        for number in re.findall(r"(?:met: |; .* and )(\d+)", line)
    ]
    if told:
        assert sum(told) == sum(
            cell.count("FAILS") > 0 for line in page.splitlines() for cell in line.split("|")
        )


def test_pages_and_rows_are_seen() -> None:
    """The patterns above find what they are meant for."""
    assert len(PAGES) > 50 and len(ACCEPTANCES) > 150 and len(MISSED) >= 3
    assert sum(bool(failures(path.read_text())) for path in PAGES) >= 5


def test_every_script_and_every_page_is_listed() -> None:
    listing = (ROOT / "docs" / "benchmarks.md").read_text()
    scripts = [f"benchmarks/{path.parent.name}" for path in (ROOT / "benchmarks").glob("*/run.py")]
    names = [re.sub(r"(_\d+x-\w+)?_\d+$", "", path.stem) for path in PAGES]
    assert [name for name in [*scripts, *names] if f"`{name}`" not in listing] == []
