"""Check published pages and the texts that quote them: python benchmarks/guard.py

Every verdict is computed again from its figure and threshold; a page is what its script wrote; figures of README,
how-tos, `docs/systems.toml` and acceptance rows are those of the cells that `quotes.json` names, and "at most" is the
largest of a row or column. `--quote` looks for the cells of figures that are new. Prints what is wrong and exits with 1
if anything is; `--ages` prints what changed of the code behind each page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import seals
import verdicts

SOURCES = Path("docs") / "figures.toml"
QUOTES = Path("benchmarks") / "results" / "quotes.json"
PROSE = "prose"
_MACHINE = re.compile(r"(_\d+x-\w+)?_\d+$")
# Figures of measurements: numbers with decimals, and whole ones with a unit of a ratio.
_FIGURE = re.compile(
    r"(?<![\w.,/-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\d./]*\d)"
    r"( ?(?:%|times|x|points|ms|s|MB|GB|kB)(?![\w/]))?"
)
_NUMBER = re.compile(r"(?<![\w.])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(e[-+]?\d+)?( ?%)?")
_NOT_PROSE = re.compile(
    r"^```.*?^```|^(?: {4}|\t)[^\n]*$|`[^`\n]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->", re.MULTILINE | re.DOTALL
)
_UNIT_OF_COLUMN = re.compile(r"(?:^| )(ms|us|s|kB|MB|GB)(?:,.*)?$")
_OF_ONE_KIND = {
    **dict.fromkeys(("s", "ms"), ("s", "ms", "us")),
    **dict.fromkeys(("kB", "MB", "GB"), ("kB", "MB", "GB")),
}
_UNITS_OF_RATIOS = ("%", "times", "x", "points")


class Figure(NamedTuple):
    """A figure of a text."""

    text: str
    """Figure and unit, as written."""
    value: float
    decimals: int
    unit: str
    most: bool
    """Whether "at most" stands before it."""

    @property
    def key(self) -> str:
        """Text, with "at most" before it where it stands there."""
        return f"at most {self.text}" if self.most else self.text


class Quote(NamedTuple):
    """A piece of text and the pages that its figures are of."""

    place: str
    text: str
    pages: tuple[str, ...]


def figures(text: str) -> Iterator[Figure]:
    """Figures in prose: what is not code, a link or a whole number without a unit."""
    prose = _NOT_PROSE.sub(lambda match: " " if "`" in match[0] else "", text)
    for match in _FIGURE.finditer(prose):
        unit = (match[3] or "").strip()
        if match[2] or unit in _UNITS_OF_RATIOS:
            before = prose[max(0, match.start() - 12) : match.start()]
            yield Figure(
                re.sub(r"\s+", " ", match[0].strip()),
                float(match[1].replace(",", "") + (match[2] or "")),
                len(match[2] or ".") - 1,
                unit,
                before.rstrip().endswith("at most"),
            )


class Place(NamedTuple):
    """A place of a page: a cell by the first cells of its row and the title of its column, or its prose."""

    page: str
    row: str
    column: str


@cache
def places(page: str) -> dict[tuple[str, str], frozenset[tuple[float, int, bool]]]:
    """Numbers of a page, by row and column: value, decimals, and whether they are in percent."""
    found: dict[tuple[str, str], set[tuple[float, int, bool]]] = {}
    for titles, *rows in verdicts.tables(page):
        for row in rows:
            for column, text in enumerate(row[: len(titles)]):
                label = " | ".join(row[: min(3, column)])
                found.setdefault((label, titles[column]), set()).update(map(_number, _NUMBER.finditer(text)))
    prose = "\n".join(line for line in page.splitlines() if not line.startswith("|"))
    found[PROSE, ""] = {_number(match) for match in _NUMBER.finditer(prose)}
    return {place: frozenset(numbers) for place, numbers in found.items()}


def _number(match: re.Match[str]) -> tuple[float, int, bool]:
    value = float(match[1].replace(",", "") + (match[2] or "") + (match[3] or ""))
    decimals = len(match[2] or ".") - 1 - int(match[3][1:] if match[3] else 0)
    return value, max(decimals, 0), bool(match[4])


def is_of(figure: Figure, number: tuple[float, int, bool]) -> bool:
    """Whether a figure is a number of a page, rounded at most."""
    value, decimals, percent = number
    scales = [(1.0, 0)]
    if figure.unit in ("%", "points") and not percent:
        scales.append((100.0, -2))
    if not figure.unit and percent:
        scales.append((0.01, 2))
    if figure.unit in ("s", "ms"):
        scales += [(1e3, -3), (1e-3, 3)]
    if figure.unit in ("GB", "MB"):
        scales += [(1e3, -3), (1e-3, 3)]
    for scale, shift in scales:
        fewer = decimals + shift >= figure.decimals
        slack = 0.5 * 10.0**-figure.decimals if fewer else 0.0
        if abs(value * scale - figure.value) <= slack + 1e-9:
            return True
    return False


@cache
def _largest(page: str) -> frozenset[tuple[float, int, bool]]:
    """Largest number, by size, of each column and row of a page's tables, and thresholds."""
    found = set()
    for titles, *rows in verdicts.tables(page):
        columns = [[row[i] for row in rows if i < len(row)] for i in range(len(titles))]
        for cells in [*columns, *rows]:
            first = [match for cell in cells if (match := _NUMBER.search(verdicts.THRESHOLD.sub("", cell)))]
            if first:
                found.add(_number(max(first, key=lambda match: _number(match)[0])))
            ends = [match for cell in cells for match in _NUMBER.finditer(verdicts.THRESHOLD.sub("", cell))]
            if ends:
                found.add(_number(max(ends, key=lambda match: _number(match)[0])))
        for row in rows:
            for cell in row:
                found |= {
                    _number(m)
                    for bound in verdicts.THRESHOLD.findall(cell)
                    for m in _NUMBER.finditer(bound[1])
                }
    return frozenset(found)


class Tree:
    """Pages and texts under a root, so that copies can be checked."""

    def __init__(self, root: Path = seals.ROOT) -> None:
        self.root = root
        folder = root / "benchmarks" / "results"
        self.pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
        self.records = seals.records(folder / "records.json")
        self.sources = tomllib.loads((root / SOURCES).read_text(encoding="utf-8"))
        self.quoted = json.loads((root / QUOTES).read_text(encoding="utf-8"))

    def named(self, name: str) -> list[str]:
        """Pages called `name`, with or without machine and month."""
        return [
            stem for stem in self.pages if name in (stem, _MACHINE.sub("", stem), stem.rpartition("_")[0])
        ]

    def quotes(self) -> Iterator[Quote]:
        """Texts with figures: README, how-tos, systems, acceptance rows."""
        for path in [self.root / "README.md", *sorted((self.root / "docs" / "howto").glob("*.md"))]:
            name = str(path.relative_to(self.root))
            yield self._quote(name, path.read_text(encoding="utf-8"))
        systems = tomllib.loads((self.root / "docs" / "systems.toml").read_text(encoding="utf-8"))
        for system in systems["system"]:
            text = f"{system.get('reproduced', '')}\n{system.get('missing', '')}"
            yield self._quote(f"systems.toml {system['name']}", text)
        for path in sorted((self.root / "docs").glob("acceptance*.md")):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.startswith("| ") and not line.startswith(("| id |", "| ---")):
                    id_, *claim, place = (cell.strip() for cell in line.strip().strip("|").split(" | "))
                    yield from self._row(f"{path.name} {id_}", " ".join(claim), place)

    def _quote(self, place: str, text: str) -> Quote:
        names = self.sources.get(place, {}).get("pages", [])
        return Quote(place, text, tuple(stem for name in names for stem in self.named(name)))

    def _row(self, place: str, claim: str, scripts: str) -> Iterator[Quote]:
        """Quotes of a row: what stands in brackets with the name of a page is of that page alone."""
        written = [
            stem
            for name, rows in _commands(scripts)
            for stem, page in self.pages.items()
            for script, own in _commands(page)[:1]
            if script == name and (not rows or not own or rows & own)
        ]
        said = [stem for name in re.findall(r"`(\w[\w-]+)`", claim) for stem in self.named(name)]
        everywhere = tuple(dict.fromkeys([*written, *said, *self._quote(place, claim).pages]))
        rest = claim
        for match in re.finditer(r"\(([^()]*`(\w[\w-]+)`[^()]*(?:\([^()]*\)[^()]*)?)\)", claim):
            if named := self.named(match[2]):
                rest = rest.replace(match[0], " ")
                others = [s for name in re.findall(r"`(\w[\w-]+)`", match[1]) for s in self.named(name)]
                yield Quote(place, match[1], tuple(dict.fromkeys([*named, *others])))
        if everywhere:
            yield Quote(place, rest, everywhere)

    def faults(self) -> Iterator[str]:
        """Faults of pages, and of figures in texts."""
        for stem, page in self.pages.items():
            yield from self.page_faults(stem, page)
        for quote in self.quotes():
            yield from self.quote_faults(quote)

    def page_faults(self, stem: str, page: str) -> Iterator[str]:
        script = seals.script_of(page).split("/")[1]
        for judgement in verdicts.judgements(script, page):
            if not judgement.right:
                row = " | ".join(judgement.cell.row)
                what = (
                    "not computed again" if judgement.right is None else f"not what {judgement.figure} gives"
                )
                yield f"{stem}: {judgement.threshold or judgement.cell.text!r} is {what}: {row}"
        if not seals.is_as_written(page, self.records.get(stem)):
            yield f"{stem}: header or tables are not those that the script wrote"

    def quote_faults(self, quote: Quote) -> Iterator[str]:
        other: Mapping[str, str] = self.sources.get(quote.place, {}).get("other", {})
        known = self.quoted.get(quote.place, {})
        for figure in figures(quote.text):
            if figure.text in other:
                continue
            place = Place(*known[figure.key]) if figure.key in known else None
            where = ", ".join(quote.pages) or f"no page that {SOURCES} names"
            if place is None:
                yield f"{quote.place}: {figure.key} is not known to stand on {where}"
            elif place.page not in quote.pages:
                yield f"{quote.place}: {figure.key} is of {place.page}, not of {where}"
            elif not self.stands(figure, place):
                yield f"{quote.place}: {figure.key} is not what {' / '.join(place)} says"

    def stands(self, figure: Figure, place: Place) -> bool:
        """Whether a figure stands in a place; one after "at most" is the largest of its row or column, too."""
        page = self.pages[place.page]
        column = _UNIT_OF_COLUMN.search(place.column)
        if column and figure.unit and column[1] not in _OF_ONE_KIND.get(figure.unit, ()):
            return False
        if not any(is_of(figure, number) for number in places(page).get(place[1:], ())):
            return False
        return not figure.most or any(is_of(figure, largest) for largest in _largest(page))

    def places_of(self, figure: Figure, quote: Quote) -> list[Place]:
        """Places where a figure stands, those first that share most words with what is around it."""
        at = quote.text.find(figure.text.split()[0])
        around = _words(quote.text[max(0, at - 120) : at + 120])
        found = [
            Place(stem, row, column)
            for stem in quote.pages
            for row, column in places(self.pages[stem])
            if self.stands(figure, Place(stem, row, column))
        ]

        def rank(place: Place) -> tuple[bool, int]:
            numbers = places(self.pages[place.page])[place[1:]]
            exact = any(
                value == figure.value and decimals == figure.decimals for value, decimals, _ in numbers
            )
            return place.row == PROSE, -len(around & _words(" ".join(place[1:]))) - 2 * exact

        return sorted(found, key=rank)

    def look_for_quotes(self) -> Iterator[str]:
        """Add places of figures that have none, drop those of figures that are gone, and say which were added."""
        kept: dict[str, dict[str, Place]] = {}
        for quote in self.quotes():
            other = self.sources.get(quote.place, {}).get("other", {})
            for figure in figures(quote.text):
                known = self.quoted.get(quote.place, {}).get(figure.key)
                if known and Place(*known).page in quote.pages and self.stands(figure, Place(*known)):
                    kept.setdefault(quote.place, {})[figure.key] = Place(*known)
                elif figure.text not in other and (found := self.places_of(figure, quote)):
                    kept.setdefault(quote.place, {})[figure.key] = found[0]
                    yield f"{quote.place}: {figure.key} is {' / '.join(found[0])}, one of {len(found)} places"
        self.quoted = kept
        lines = [
            f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in sorted(kept.items())
        ]
        (self.root / QUOTES).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    def ages(self) -> Iterator[tuple[str, seals.Seal, list[str]]]:
        """Pages, their seals or records, and what of the measured code has changed since."""
        for stem, page in self.pages.items():
            seal = seals.seal_of(page) or self.records[stem]
            yield stem, seal, seals.changed_since(seal, seals.script_of(page), self.root)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", text.lower()))


def _commands(text: str) -> list[tuple[str, set[str]]]:
    found = re.findall(r"benchmarks/(\w+)/(?:\w+/)?run\.py(?:[^`]*?--only ([\w,-]+))?", text)
    return [(name, set(filter(None, rows.split(",")))) for name, rows in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ages", action="store_true", help="Print what changed of the code behind each page."
    )
    parser.add_argument(
        "--quote", action="store_true", help="Look for the places of new figures, and write them."
    )
    options, tree = parser.parse_args(), Tree()
    if options.quote:
        print("\n".join(tree.look_for_quotes()) or "no new figures")
    if options.ages:
        for stem, seal, changed in tree.ages():
            print(f"{stem} ({seal.commit}): {', '.join(changed) or 'unchanged'}")
    faults = list(tree.faults())
    print("\n".join(faults) or f"{len(tree.pages)} pages and the texts that quote them agree.")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
