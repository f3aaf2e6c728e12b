"""`wirewise watch`: history of a job watched by `wirewise.watch`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise.cli.output import JsonOption, Said, print_text, write_out
from wirewise.cost.drift import StepWindow, WatchEvent, read_history
from wirewise.errors import InputError
from wirewise.report.figures import MISSING, percent, seconds, size

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Jobs that wirewise.watch watches: steps, exchange, memory, drifts."
)

_MOST_ROWS = 20
_POLL_S = 1.0


@app.callback()
def _group() -> None:
    """One command would else be the group itself."""


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder passed to wirewise.watch.")],
    follow: Annotated[bool, typer.Option("--follow", help="New windows as they come, until Ctrl-C.")] = False,
    json: JsonOption = None,
) -> None:
    """Show windows of steps, the slowest rank and its machine, and what drifted."""
    if follow and json is not None:
        raise InputError("--follow goes on for ever and --json writes one object; expected one of them")
    found = read_history(run)
    record = {"windows": _windows(found), "events": _events(found)}
    write_out(json, msgspec.to_builtins(record), *_summary_lines(found))
    while follow:
        time.sleep(_POLL_S)
        later = read_history(run)
        if later[: len(found)] != found:
            print_text("The job was started anew.")
            found = []
        for one in later[len(found) :]:
            print_text("\t".join(_row(one)) if isinstance(one, StepWindow) else _sentence(one))
        found = later


def _windows(found: Sequence[StepWindow | WatchEvent]) -> list[StepWindow]:
    return [one for one in found if isinstance(one, StepWindow)]


def _events(found: Sequence[StepWindow | WatchEvent]) -> list[WatchEvent]:
    return [one for one in found if isinstance(one, WatchEvent)]


def _summary_lines(found: Sequence[StepWindow | WatchEvent]) -> Iterator[Said]:
    titles = [
        "up to step",
        "step",
        "slowest",
        "data",
        "exchange",
        "skew",
        "memory",
        "processors",
        "host",
        "GPU",
        "link",
    ]
    yield titles, [_row(one) for one in _windows(found)[-_MOST_ROWS:]]
    events = _events(found)
    yield from map(_sentence, events)
    if not events:
        yield "Nothing drifted."


def _sentence(event: WatchEvent) -> str:
    return f"Step {event.step}: {event.sentence}."


def _row(one: StepWindow) -> list[str]:
    """Slowest rank by what it computes and loads, since all wait for it; skew is by how much it is above the mean.

    Processors, host and GPU are those of the slowest rank; the link is the one that fell most below its usual rate.
    """
    busy = one.computed_s + one.data_s
    mean, slowest = float(busy.mean()), int(busy.argmax())
    return [
        str(one.step),
        seconds(max(one.step_s)),
        f"rank {slowest}",
        seconds(max(one.data_s)),
        seconds(sum(one.exchange_s) / len(one.exchange_s)),
        percent(float(busy.max()) / mean - 1) if mean > 0 else "",
        size(max(one.memory_bytes)),
        _figure(one.processors, slowest, "{:.2f}"),
        _figure(one.host_use, slowest, "{:.0%} busy"),
        _figure(one.device_use, slowest, "{:.0%} busy"),
        _link(one),
    ]


def _link(one: StepWindow) -> str:
    """The link that fell most below its usual rate."""
    known = [(rank, link) for rank, link in enumerate(one.links) if link is not None]
    if not known:
        return MISSING
    rank, link = min(known, key=lambda pair: pair[1].bytes_per_s / pair[1].usual_bytes_per_s)
    return f"{rank} to {link.peer}: {link.bytes_per_s / 1e6:.3g} MB/s"


def _figure(values: Sequence[float | None], rank: int, form: str) -> str:
    value = values[rank] if rank < len(values) else None
    return MISSING if value is None else form.format(value)
