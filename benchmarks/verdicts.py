"""Verdicts of published pages, computed again from the figures and thresholds that stand on the pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

NUMBER = re.compile(
    r"(?<![\w.])(?<![A-Za-z]-)(?P<sign>[-+]?)(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<decimals>\d+))?)(?P<power>e[-+]?\d+)?"
    r"(?P<unit> ?(?:%|points|ms|us)(?![a-z]))?"
)
THRESHOLD = re.compile(r"([<>]=) ([-+\d.e]+)(?: and ([<>]=) ([-+\d.e]+))?: (holds|FAILS)")
VERDICT = re.compile(r"\b(holds|FAILS)\b")
# A larger threshold is no fraction: "2.5 %" is 2.5 to it.
LARGEST_FRACTION = 1.5


@dataclass(frozen=True)
class Cell:
    """A cell that has a verdict, in its table."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    at: int
    column: int

    @property
    def row(self) -> tuple[str, ...]:
        """Cells of its row."""
        return self.rows[self.at]

    @property
    def title(self) -> str:
        """Title of its column."""
        return self.titles[self.column]

    @property
    def text(self) -> str:
        """Text of the cell."""
        return self.row[self.column]

    def column_of(self, title: str) -> int | None:
        """Nearest column with this title to the left, or else the first to the right."""
        places = [i for i, name in enumerate(self.titles) if name == title and i != self.column]
        return max((i for i in places if i < self.column), default=next(iter(places), None))

    def number(self, title: str) -> float:
        """First number of the column with this title, as printed."""
        column = self.column_of(title)
        match = None if column is None else NUMBER.search(self.row[column])
        if match is None:
            raise ValueError(f"no number under {title!r}")
        return value(match)


class Judgement(NamedTuple):
    """A verdict and what its figure says."""

    cell: Cell
    threshold: str
    """Threshold and verdict, as printed; "" for a verdict without a threshold."""
    figure: str
    """Figure that was judged, as printed; "" if none was found."""
    right: bool | None
    """Whether the figure allows the verdict; None if that cannot be computed."""


# The figure is the first number of the nearest cell to the left with one, or stands before the threshold in
# the cell of the verdict, but for these: (script, title of the verdict or what stands before the threshold)
# -> (title of the figure, how to read it). The first title that the table has is taken.
FIGURES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("accuracy", ">= 0.7 and <= 0.9"): (("test accuracy", "first"),),
    ("collective_planners", "edges, claimed"): (("edges between groups", "first"),),
    ("collective_planners", "claimed"): (
        ("first run / bound", "first"),
        ("seconds", "first"),
        ("faster", "first"),
        ("ratio of slowdowns", "first"),
        ("faults", "first"),
    ),
    ("collective_planners", "seconds claimed"): (("first run s", "first"),),
    ("collectives", "probes, claimed"): (("probes", "first"),),
    ("collectives", "payload, claimed"): (("payload over limit", "first"),),
    ("collectives", "interface, claimed"): (("on the interface over limit", "first"),),
    ("collectives", "claimed of waiting"): (("event-driven over waiting", "first"),),
    ("collectives", "claimed of one"): (("event-driven over one under way", "first"),),
    ("collectives", "over gloo, claimed"): (("over gloo", "first"),),
    ("collectives", "of the bound, claimed"): (("of the bound", "first"),),
    ("collectives", ">= 2"): (("over gloo", "first"), ("faster", "first")),
    ("collectives", "claimed"): (("largest error", "first"), ("of the bound", "first")),
    ("cost_growth", "V1: time"): (("exponent of time", "first"),),
    ("cost_growth", "memory"): (("of memory", "first"),),
    ("cost_growth", "reached: s"): (("whole process, s", "first"), ("s", "first")),
    ("cost_growth", "P5: s"): (("s", "first"),),
    ("cost_growth", "GB"): (("GB", "first"),),
    ("cost_growth", "bound"): (("over the bound", "first"),),
    ("cost_growth", "decision"): (("decision ms", "as printed"),),
    ("cost_growth", "P6: plan and prediction"): (("predicted in s", "plus the one before"),),
    ("cost_growth", "off"): (("off one by one", "first"),),
    ("deployment", ">= 1"): (("95 % interval", "as printed"), ("figure", "first")),
    ("disco_search", "order of alpha"): (("step, relative", "first"),),
    ("full_graph", "threshold"): (
        ("speedup over fp32", "first"),
        ("eta", "first"),
        ("re-planning", "first"),
        ("share of predicted", "first"),
        ("predicted / measured", "first"),
    ),
    ("full_graph", "slope"): (("slope x rate", "first"),),
    ("full_graph", "to fp32"): (("time / fp32", "first"),),
    ("fusion_gains", "within 2 % of best"): (("over best % (of)", "first"),),
    ("fusion_gains", "gain >= 10 % where 12 % predicted"): (("measured gain %", "first"),),
    ("fusion_gains", "time"): (("time, error %", "first"),),
    ("fusion_gains", "memory"): (("memory, error %", "first"),),
    ("fusion_planners", "search within 2 %"): (("search, worst %", "first"),),
    ("fusion_planners", "fewer, claimed"): (("fewer", "first"),),
    ("fusion_planners", "step, claimed"): (("step with / without", "first"),),
    ("gnn_placement", "claimed"): (
        ("mean gain %", "first"),
        ("over the best", "first"),
        ("seconds", "first"),
        ("placed / by counted", "first"),
    ),
    ("gradient_codecs", "encode at least 5x"): (("torch / numba", "first"),),
    ("gradient_steps", "at least 0.97 of uncompressed"): (("over uncompressed", "first"),),
    ("kernel_bytes", "no spills"): (("sm_90: spilt", "first"),),
    ("large_graphs", "off the mean"): (("largest part", "off one"),),
    ("mini_batch", "threshold"): (
        ("value", "first"),
        ("points", "as printed"),
        ("figure", "first"),
    ),
    ("parallel_planning", "reached"): (("planned in s", "first"), ("O2 over O3", "first")),
    ("pipelines", "claim"): (("delayed", "in brackets"),),
    ("pipelines", ">= 0.05"): (("over synchronous", "first"),),
    ("pipelines", "over hidden"): (("over one replica", "over the row before"),),
    ("pyg_checks", "demanded"): (("% of an epoch", "as printed"),),
    ("recovery", "left behind"): (("after", "first"),),
    ("recovery", "claim"): (("over plain", "first"),),
    ("replay", "core, claimed"): (("core", "millions"),),
    ("replay", "claimed"): (("replay s", "first"),),
    ("replay_accuracy", "threshold"): (("errors us", "largest"), ("recorded / not", "first")),
    ("replay_accuracy", "median"): (("errors us", "median"),),
    ("replay_accuracy", "<= 1e+06"): (("bytes a step", "first"), ("bytes", "first")),
    ("reshard", "claimed"): (("over the bound", "first"),),
    ("scaling", "within"): (("error %", "first"),),
    ("scaling", "V2: mean"): (("mean error %", "first"),),
    ("scaling", "worst"): (("worst error %", "first"),),
    ("stalls", "<= 0.08"): (("ours ms", "the next cell"),),
    ("taccl", "objective, expected"): (("objective", "first"),),
    ("taccl", "time, claimed"): (("alone s", "first"),),
    ("taccl", ">= 2"): (("most together", "first"),),
    ("taccl", "claimed"): (("over the cut", "first"), ("together / apart", "first")),
    ("tree_packing", "weights, claimed"): (("weights / optimum", "first"),),
    ("tree_packing", "few, claimed"): (("few / optimum", "first"),),
    ("tree_packing", "seconds, claimed"): (("slowest weights s", "first"), ("seconds", "first")),
    ("tree_packing", "claimed"): (
        ("any paths / bound - 1", "first"),
        ("published", "equal to the one before"),
        ("apart %", "first"),
        ("of the best", "first"),
        ("sent by a server GB", "first"),
    ),
}


def _least(cell: Cell, title: str, *others: str, slack: float = 1.0) -> bool:
    """Whether a figure is no larger than others of its row, but for rounding to their digits."""
    return cell.number(title) - 0.11 <= slack * min(cell.number(other) for other in others)


# Verdicts that have no threshold, by script and title: what they say of other cells.
RELATIONS: dict[tuple[str, str], Callable[[Cell], bool]] = {
    ("compression_planners", "never worse"): lambda cell: (
        _least(cell, "auto", "whole")
        if "auto" in cell.titles
        else _least(
            cell, "or none", "layer-wise", "one group", "even, best", "MergeComp", "MG-WFBP", "Cupcake"
        )
    ),
    ("compression_planners", "never better"): lambda cell: cell.number("mean %") >= 0,
    ("disco_search", "between full overlap and baselines (E4)"): lambda cell: (
        0 <= cell.number("gain %") <= cell.number("gain of full overlap %")
    ),
    ("full_graph", "threshold"): lambda cell: (
        cell.number("mean bits") < min(float(row[1].split()[0]) for row in cell.rows if row != cell.row)
    ),
    ("fusion_planners", "dpro within 0.01 % of the best other"): lambda cell: _least(
        cell, "dpro ms", "one tensor ms", "25 MiB ms", "caps ms", "mcmc ms", slack=1.0001
    ),
    ("gradient_steps", "none or fp16"): lambda cell: cell.row[cell.column - 1] in ("all_reduce", "fp16"),
    ("quantize_kernels", "claim"): lambda cell: (
        cell.number("ratio to copy") >= float(cell.text.split()[1]) and cell.number("to torch ops") >= 10
    ),
    ("stalls", "signs"): lambda cell: min(cell.number("alpha ms"), cell.number("beta ns/B")) > 0,
}

# Differences of two columns, by script and the words before the threshold.
DIFFERENCES = {("stalls", "hits"): ("hit rate", "cached")}

UNITS = {"%": 0.01, "points": 0.01, "ms": 1e-3, "us": 1e-6}
WORDS = {"equal bit for bit": 1.0, "DIFFERS": 0.0, "True": 1.0, "False": 0.0}


def value(match: re.Match[str]) -> float:
    """The number that `NUMBER` matched, without its unit."""
    return float(match["sign"] + match["digits"].replace(",", "") + (match["power"] or ""))


def tables(page: str) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Tables of a page as rows of cells: titles first, without the ruler."""
    rows: list[tuple[str, ...]] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            rows.append(tuple(cell.strip() for cell in line.strip().removesuffix("|").split("|")[1:]))
        elif rows:
            yield (rows[0], *rows[2:])
            rows = []


def cells_with_verdicts(page: str) -> Iterator[Cell]:
    """Every cell of a table that says "holds" or "FAILS"."""
    for titles, *rows in tables(page):
        for at, row in enumerate(rows):
            for column, text in enumerate(row):
                if VERDICT.search(text):
                    yield Cell(titles, tuple(rows), at, column)


def judgements(script: str, page: str) -> Iterator[Judgement]:
    """Compute every verdict of a page again.

    Args:
        script: Name of the benchmark that wrote the page.
        page: Text of the page.
    """
    for cell in cells_with_verdicts(page):
        end = 0
        for match in THRESHOLD.finditer(cell.text):
            figures, printed = _figures(script, cell, cell.text[end : match.start()].strip(" ;,("), match)
            end = match.end()
            yield Judgement(cell, match[0], printed, _allows(match, figures) if figures else None)
        if len(THRESHOLD.findall(cell.text)) < len(VERDICT.findall(cell.text)):
            relation = RELATIONS.get((script, cell.title))
            right = None if relation is None else relation(cell) == ("FAILS" not in cell.text)
            yield Judgement(cell, "", "", right)


class Figure(NamedTuple):
    """A figure as its printed digits give it: the middle of what it may stand for, and half of its width."""

    middle: float
    half: float

    def times(self, factor: float) -> Figure:
        return Figure(factor * self.middle, abs(factor) * self.half)


def _figures(script: str, cell: Cell, words: str, match: re.Match[str]) -> tuple[list[Figure], str]:
    """Figure of a verdict, in each unit that it may be meant in, and its text."""
    if (script, words) in DIFFERENCES:
        one, other = (_read(cell, cell.column_of(title), "fraction") for title in DIFFERENCES[script, words])
        return [Figure(one[0][0].middle - other[0][0].middle, 0.0)], f"{one[1]} - {other[1]}"
    for text, number in WORDS.items():
        if words.startswith(text):
            return [Figure(number, 0.0)], words
    if found := list(NUMBER.finditer(words)):
        return _units(found[-1], cell.title), found[-1][0]
    bounds = match[0].rpartition(":")[0]
    if words and words in cell.titles:
        return _read(cell, cell.column_of(words), "first")
    for key in (words, bounds, cell.title):
        for title, how in FIGURES.get((script, key), ()):
            column = cell.column_of(title)
            if column is not None:
                return _read(cell, column, how)
    for column in range(cell.column - 1, -1, -1):
        figures, text = _read(cell, column, "first")
        if figures:
            return figures, text
    return [], ""


def _read(cell: Cell, column: int | None, how: str) -> tuple[list[Figure], str]:
    """Figures of a cell, and its text."""
    assert column is not None
    if how == "the next cell":
        return _read(cell, column + 1, "first")
    text, title = THRESHOLD.sub("", cell.row[column]), cell.titles[column]
    if how == "equal to the one before":
        return [Figure(float(text != cell.row[column - 1]), 0.0)], text
    if text in WORDS:
        return [Figure(WORDS[text], 0.0)], text
    if how == "in brackets":
        text = text.partition("(")[2]
    numbers = list(NUMBER.finditer(text))
    if not numbers:
        return [], ""
    if how in ("largest", "median"):
        numbers.sort(key=lambda match: abs(value(match)))
        numbers = numbers[-1:] if how == "largest" else numbers[len(numbers) // 2 :]
    units = _units(numbers[0], title, text)
    printed = units[-1]
    if how == "as printed":
        units = [printed]
    elif how == "fraction":
        units = units[:1]
    elif how == "millions":
        units = [printed.times(1e6)]
    elif how == "off one":
        units = [Figure(abs(printed.middle - 1), printed.half)]
    elif how == "over the row before":
        before = value(next(NUMBER.finditer(cell.rows[cell.at - 1][column])))
        units = [printed.times(1 / before)]
    elif how == "plus the one before":
        before = value(next(NUMBER.finditer(cell.row[column - 1])))
        units = [Figure(printed.middle + before, 2 * printed.half)]
    return units, text


def _units(match: re.Match[str], title: str, text: str = "") -> list[Figure]:
    """A figure as a fraction or in seconds, if its unit is another; at last as it is printed."""
    half = 0.5 * float(f"1{match['power'] or ''}") * 10.0 ** -len(match["decimals"] or "")
    if not match["decimals"] or (value(match) == 0 and match["power"]):
        half = 0.0  # a count, and a difference that is none
    printed, unit = Figure(value(match), half), (match["unit"] or "").strip()
    # "3.2 ± 0.1 %": the unit of a spread is that of its middle.
    of_text, of_title = (UNITS.keys() & re.split(r"[^a-z%]+", words.lower()) for words in (text, title))
    units = {unit} if unit else of_text or of_title
    return [*(printed.times(UNITS[name]) for name in units), printed]


def _allows(match: re.Match[str], figures: list[Figure]) -> bool:
    """Whether a figure gets the verdict that `THRESHOLD` matched."""
    signs = [(match[1], float(match[2]))] + ([(match[3], float(match[4]))] if match[3] else [])
    fraction = max(abs(bound) for _, bound in signs) <= LARGEST_FRACTION
    middle, half = figures[0] if fraction else figures[-1]
    if all(sign == "<=" for sign, _ in signs) and fraction:
        # An error is judged by its size.
        middle = abs(middle)
    low, high = middle - half, middle + half
    if match[5] == "FAILS":
        return any(low < bound if sign == ">=" else high > bound for sign, bound in signs)
    # Thresholds are printed with four digits.
    return all(
        high >= bound - 1e-4 * abs(bound) if sign == ">=" else low <= bound + 1e-4 * abs(bound)
        for sign, bound in signs
    )
