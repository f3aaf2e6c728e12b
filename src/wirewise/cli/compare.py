"""`wirewise compare`: what got slower from one recorded run to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from wirewise.cli.output import write_out
from wirewise.errors import InputError
from wirewise.report.figures import MISSING, seconds, signed

if TYPE_CHECKING:
    from wirewise.advice.comparing import Change95

__all__ = ["compare"]


def compare(run_a: Path, run_b: Path, fail_over: str | None, json: str | None) -> None:
    """Compare two runs and print the changes; exit code 1 if a step got slower by more than the limit.

    Raises:
        InputError: The limit is not a fraction, or the runs cannot be compared.
    """
    limit = None if fail_over is None else _share(fail_over)
    # Needs the readers of traces, which take a moment to import.
    from wirewise.advice.comparing import compare as compare_runs

    found = compare_runs(run_a, run_b)
    titles = ["part", "run A", "run B", "longer by", "95 %", "beyond noise"]
    rows = [_row(row) for row in (found.step, *found.changes)]
    failed = limit is not None and found.exceeds(limit)
    write_out(json, {**msgspec.to_builtins(found), "failed": failed}, found.sentence, "", (titles, rows))
    if failed:
        raise typer.Exit(1)


def _row(row: Change95) -> list[str]:
    share = MISSING if row.share is None else signed(row.share)
    interval = MISSING if row.ci95 is None else " to ".join(map(signed, row.ci95))
    verdict = "slower" if row.slower else "faster" if row.faster else ""
    name = f"{row.name} (rank {row.rank})" if row.kind == "phase" else row.name
    return [name, seconds(row.a_s), seconds(row.b_s), share, interval, verdict]


def _share(text: str) -> float:
    """The share that a text says, as "5%" or "0.05".

    Raises:
        InputError: Another text, or a share below 0.
    """
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise InputError(f"--fail-over is {text!r}; expected a share of the step, such as 5% or 0.05")
    return value
