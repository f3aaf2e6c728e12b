"""`wirewise profile stalls` and `wirewise profile recommend`: where steps stall, and which machines are cheapest."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from wirewise.cli.options import Given, with_options
from wirewise.cli.output import JsonOption, print_table, write_json
from wirewise.errors import InputError
from wirewise.recipes.scripts import StallJob

if TYPE_CHECKING:
    from wirewise.profile.stalls.report import Difference, StallReport

__all__ = ["recommend", "stalls"]


@with_options
def stalls(
    command: Annotated[
        list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified, on one machine.")
    ],
    given: Given[StallJob],
    what_if: Annotated[
        list[str] | None,
        typer.Option(help="Change whose step is predicted, such as cached=0.5; may be repeated."),
    ] = None,
    compat: Annotated[
        bool, typer.Option("--compat", help="Stash's formulas as published and as coded, too.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Trace of the same command, to say whether its replay agrees.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Page to write, with the parts as bars.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder that keeps the raw times.")] = None,
    json: JsonOption = None,
) -> None:
    """Measure where the steps of an unmodified training script lose time: data, interconnect, network."""
    from wirewise.recipes.stalls import measure

    cached = [_fraction(text) for text in what_if or []]
    job = given.record(command=command)
    report = measure(job, out, _note)
    predicted = _predictions(report, [*cached, *job.fractions])
    record = msgspec.to_builtins(report) | {"largest": report.largest, "what_if": predicted}
    if compat:
        record["compat"] = report.compat()
    agreement = _agreement(report, against)
    record["reconciled"] = msgspec.to_builtins(agreement)
    write_json(json, record)
    said = [difference.sentence for difference in agreement]
    if html is not None:
        from wirewise.report.shell import write_page
        from wirewise.report.stalls_page import stalls_html

        kind = f"{report.ranks} ranks, {report.hosts} hosts, {report.steps} steps a run"
        write_page(stalls_html(kind, report.sentence(), report.rows(), [*said, *report.notes]), html)
    if json != "-":
        _print(report, predicted, compat)
        for sentence in said:
            typer.echo(sentence)


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
    from wirewise.recipes.stalls_elsewhere import workload

    listed = load_prices(prices)
    choices = choose(listed, workload(_load(stalls), samples), _seconds(budget))
    best = choices[0]
    record = {"prices": str(prices), "date": listed.date, "currency": listed.currency}
    write_json(json, record | {"choices": msgspec.to_builtins(choices), "within_budget": best.within_budget})
    if json == "-":
        return
    if best.within_budget:
        typer.echo(
            f"Cheapest within the budget: {best.count} x {best.instance}, {best.time_s / 3600:.2f} h for "
            f"{best.cost:.2f} {listed.currency} by prices of {listed.date}."
        )
    else:
        typer.echo("No choice keeps the budget; the cheapest of all stands first.")
    rows = []
    for c in choices:
        numbers = [f"{c.step_s * 1e3:.1f}", f"{c.time_s / 3600:.2f}", f"{c.cost:.2f}"]
        rows.append([f"{c.count} x {c.instance}", *numbers, "yes" if c.within_budget else "no"])
    print_table(["machines", "step ms", "hours", f"cost {listed.currency}", "within budget"], rows)


def _load(path: Path) -> StallReport:
    from wirewise.profile.stalls.report import load_report

    return load_report(path)


def _agreement(report: StallReport, against: Path | None) -> list[Difference]:
    if against is None:
        return []
    from wirewise.profile.stalls.report import reconcile
    from wirewise.recipes.stalls_replayed import counterfactuals
    from wirewise.trace import load

    return reconcile(report, counterfactuals(load([against])))


def _print(report: StallReport, predicted: list[dict[str, Any]], compat: bool) -> None:
    typer.echo(report.sentence())
    total = report.total_s.mean_s
    rows = []
    for name, amount in report.rows():
        low, high = (1e3 * end for end in amount.ci95_s)
        share = f"{100 * amount.mean_s / total:.1f}"
        rows.append([name, f"{amount.mean_s * 1e3:.2f}", f"{low:.2f} to {high:.2f}", share])
    print_table(["part", "ms a step", "95 % interval", "%"], rows)
    for row in predicted:
        measured = row["measured_step_s"]
        said = "" if measured is None else f", measured {measured * 1e3:.1f} ms"
        typer.echo(
            f"With {row['cached']:.0%} of the items cached a step would take {row['step_s'] * 1e3:.1f} ms "
            f"(DS-Analyzer's formula: {row['published_step_s'] * 1e3:.1f} ms){said}."
        )
    if predicted:
        typer.echo(f"Caching helps up to {predicted[0]['least_useful']:.0%} of the items.")
    if compat:
        formulas = report.compat()
        names = list(formulas["as_published"])
        rows = [[n, *(f"{formulas[form][n]:.4f}" for form in ("as_published", "as_coded"))] for n in names]
        print_table([f"Stash, {report.steps} steps", "as published", "as coded"], rows)
    for note in report.notes:
        typer.echo(f"Note: {note}.")


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


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
