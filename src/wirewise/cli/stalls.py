"""`wirewise profile stalls` and `wirewise profile recommend`: where steps stall, and which machines are cheapest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from wirewise.cli.options import GivenOptions, with_options
from wirewise.cli.output import JsonOption, Said, note, writable_file, write_out
from wirewise.errors import InputError
from wirewise.report.comparison_page import comparison_html
from wirewise.report.shell import write_page
from wirewise.report.stalls_page import stalls_comparison
from wirewise.trials.stall_job import StallJob

if TYPE_CHECKING:
    from wirewise.profile.stalls.report import Difference, StallReport

__all__ = ["recommend", "stalls"]


@with_options
def stalls(
    command: Annotated[
        list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified, on one machine.")
    ],
    cli_options: GivenOptions[StallJob],
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="Change whose step is predicted, such as cached=0.5; may be repeated."),
    ] = None,
    compat: Annotated[
        bool, typer.Option("--compat", help="Stash's formulas as published and as coded, too.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Trace of the same command, to compare its replay with the stalls.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Page to write, with the parts as bars.", callback=writable_file)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder that keeps the raw times.")] = None,
    json: JsonOption = None,
) -> None:
    """Measure where the steps of an unmodified training script lose time: data, interconnect, network."""
    from wirewise.trials.stalls import measure

    cached = [_fraction(text) for text in what_if or []]
    job = cli_options.record(command=command)
    report = measure(job, out, note)
    predicted = _predictions(report, [*cached, *job.fractions])
    record = msgspec.to_builtins(report) | {"largest": report.largest, "what_if": predicted}
    if compat:
        record["compat"] = report.compat()
    agreement = _agreement(report, against)
    record["reconciled"] = msgspec.to_builtins(agreement)
    said = [difference.sentence for difference in agreement]
    kind = f"{report.ranks} ranks, {report.hosts} hosts, {report.steps} steps a run"
    found = stalls_comparison(kind, report.sentence(), report.rows(), [*said, *report.notes])
    if html is not None:
        write_page(comparison_html(found, "Stalls"), html)
    notes = (f"Note: {text}." for text in report.notes)
    table, more = (found.titles, found.rows), _more(report, predicted, compat)
    write_out(json, record, found.sentence, table, *more, *notes, *said)


def recommend(
    prices: Annotated[Path, typer.Argument(help="A price list in TOML, of your own and of today.")],
    stalls: Annotated[
        Path, typer.Option("--from", help="JSON that wirewise profile stalls wrote of the job.")
    ],
    samples: Annotated[float, typer.Option(help="Samples that the whole job trains on.")],
    budget: Annotated[str, typer.Option(help="Longest time that the job may take: 90min, 2h, 1d.")] = "",
    json: JsonOption = None,
) -> None:
    """Choose the machines on which a job is cheapest within a time budget."""
    from wirewise.cost.instances import choose, load_prices
    from wirewise.profile.stalls.report import load_report
    from wirewise.trials.stalls import workload

    listed = load_prices(prices)
    choices = choose(listed, workload(load_report(stalls), samples), _seconds(budget))
    best = choices[0]
    said = "No choice keeps the budget; the cheapest of all stands first."
    if best.within_budget:
        said = (
            f"Cheapest within the budget: {best.count} x {best.instance}, {best.time_s / 3600:.2f} h for "
            f"{best.cost:.2f} {listed.currency} by prices of {listed.date}."
        )
    rows = []
    for c in choices:
        numbers = [f"{c.step_s * 1e3:.1f}", f"{c.time_s / 3600:.2f}", f"{c.cost:.2f}"]
        rows.append([f"{c.count} x {c.instance}", *numbers, "yes" if c.within_budget else "no"])
    titles = ["machines", "step ms", "hours", f"cost {listed.currency}", "within budget"]
    record: dict[str, Any] = {"prices": str(prices), "date": listed.date, "currency": listed.currency}
    record |= {"choices": msgspec.to_builtins(choices), "within_budget": best.within_budget}
    write_out(json, record, said, (titles, rows))


def _agreement(report: StallReport, against: Path | None) -> list[Difference]:
    if against is None:
        return []
    from wirewise.profile.stalls.report import reconcile
    from wirewise.trace import load
    from wirewise.trials.stalls import counterfactuals

    return reconcile(report, counterfactuals(load([against])))


def _more(report: StallReport, predicted: list[dict[str, Any]], compat: bool) -> Iterator[Said]:
    """Tables that were asked for beside the parts of a step."""
    for row in predicted:
        measured = row["measured_step_s"]
        said = "" if measured is None else f", measured {measured * 1e3:.1f} ms"
        yield (
            f"With {row['cached']:.0%} of the items cached a step would take {row['step_s'] * 1e3:.1f} ms "
            f"(DS-Analyzer's formula: {row['published_step_s'] * 1e3:.1f} ms){said}."
        )
    if predicted:
        yield f"Caching helps up to {predicted[0]['least_useful']:.0%} of the items."
    if compat:
        formulas = report.compat()
        names = list(formulas["as_published"])
        rows = [[n, *(f"{formulas[form][n]:.4f}" for form in ("as_published", "as_coded"))] for n in names]
        yield [f"Stash, {report.steps} steps", "as published", "as coded"], rows


def _predictions(report: StallReport, fractions: list[float]) -> list[dict[str, Any]]:
    if not fractions:
        return []
    if report.data is None:
        raise InputError(
            "no prediction for cached data: the script's loader has no batch size or a data set without items; "
            "expected a map-style data set and a batch size"
        )
    found = []
    for x in dict.fromkeys(fractions):
        times = report.runs_s.get(f"partial {x:g}")
        found.append(
            {
                "cached": x,
                "step_s": report.data.predicted_step_s(x),
                "published_step_s": report.data.published_step_s(x),
                "least_useful": report.data.least_useful(),
                "measured_step_s": times and median(times),
                "hit_rate": report.hit_rates.get(f"partial {x:g}"),
            }
        )
    return found


def _fraction(text: str) -> float:
    match = re.fullmatch(r"cached=(\d*\.?\d+)(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise InputError(f"what-if {text!r} is not understood; expected cached=0.5 or another fraction to 1")
    return value


def _seconds(text: str) -> float:
    if not text:
        return float("inf")
    match = re.fullmatch(r"(\d*\.?\d+)\s*(s|min|h|d)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"budget {text!r} is not understood; expected a time such as 90min, 2h or 1d")
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86400}[match[2]]
