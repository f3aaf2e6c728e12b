"""`wirewise advise`: does compressing the gradients of this command pay?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from wirewise.cli.output import Said, print_text, run_folder, write_out
from wirewise.errors import InputError
from wirewise.report.figures import seconds, signed
from wirewise.results import Advice
from wirewise.units import format_size

if TYPE_CHECKING:
    from wirewise.recipes.scripts import AdviceOptions

__all__ = ["advise"]


def advise(command: Sequence[str], out: Path | None, asked: AdviceOptions, json: str | None) -> None:
    """Measure, plan, try, say; ends with code 1 where nothing can be advised.

    Raises:
        InputError: No command.
        PeerError: It failed.
    """
    # Needs torch, which takes seconds to import.
    from wirewise.recipes import advise as recipe

    if not command:
        raise InputError("no command was given; expected one after --, such as -- torchrun train.py")
    with run_folder(out, "advise") as folder:
        found = recipe.advise(command, folder, lambda text: print_text(text, err=json == "-"), asked)
    write_out(json, msgspec.to_builtins(found), *_said(found))
    if found.verdict == "unknown":
        raise typer.Exit(1)


def _said(found: Advice) -> Iterator[Said]:
    even = found.break_even_bytes_per_s
    rows = [
        ["gradients", f"{format_size(found.gradient_bytes)} on {found.ranks} ranks"],
        ["a step as it is, measured", seconds(found.measured_step_s)],
        ["the same, predicted", f"{seconds(found.predicted_ddp_s)} ({signed(found.prediction_error)})"],
        ["best buckets without compression, predicted", seconds(found.predicted_plain_s)],
        ["best plan, predicted", seconds(found.predicted_step_s)],
        ["no plan takes less than", seconds(found.lower_bound_s)],
        *([f"best plan ({way}), measured", seconds(own)] for way, own in found.tried_step_s.items()),
        [
            "all-reduces, measured",
            f"{seconds(found.latency_s)} and {8e-6 * found.bandwidth_bytes_per_s:.0f} Mbit/s of each rank",
        ],
        ["compressing pays below", "no rate" if even is None else f"{8e-6 * even:.0f} Mbit/s"],
    ]
    yield ["", ""], rows
    yield found.sentence
    if found.lines:
        yield f"Plan: {found.plan}. To carry it out:"
    yield from (f"    {line}" for line in found.lines)
    yield from (f"Note: {note}." for note in found.notes)
