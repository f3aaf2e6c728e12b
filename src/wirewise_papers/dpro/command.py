"""`wirewise run dpro`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from wirewise.cli.options import with_options
from wirewise.cli.output import (
    FolderOption,
    JsonOption,
    print_text,
    run_folder,
    write_out,
)
from wirewise_papers.dpro.job import DproOptions

__all__ = ["dpro"]


@with_options
def dpro(
    command: Annotated[list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified.")],
    options: DproOptions,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Record a training command, replay it, plan its gradient buckets, and measure the plan (dPRO)."""
    from wirewise.report import shell
    from wirewise.report.replay_page import replay_html
    from wirewise_papers.dpro import experiment

    quiet = json == "-"
    with run_folder(out, "dpro") as folder:
        result, analysis, trace = experiment.run(
            command, folder, options, lambda text: print_text(text, err=quiet)
        )
        low, high = result.ci95
        told = {
            "recorded, replayed": f"{result.measured_step_s * 1e3:.1f} ms, {result.error:+.1%}",
            "saved by the plan, simulated": f"{result.predicted_gain:.1%} of a step",
            "saved by the plan, measured": f"{result.gain:.1%} ({low:.1%} to {high:.1%})",
            "keep it": "yes" if result.kept else "no: the gain is not above its interval",
        }
        page = folder / "report.html"
        gave = shell.section("What the plan gave", "", shell.terms(told))
        shell.write_page(replay_html(trace, analysis, gave), page)
    said = (["", ""], list(told.items())), f"Plan: {result.plan}, report: {page}"
    write_out(json, msgspec.to_builtins(result), *said)
