"""`wirewise run swift`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wirewise.cli.options import GivenOptions, on_hosts, with_options
from wirewise.cli.output import (
    FolderOption,
    JsonOption,
    print_text,
    run_folder,
    write_out,
)
from wirewise.errors import InputError
from wirewise.options import fields_of
from wirewise.results import Comparison
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions
from wirewise_papers.experiment import Experiment, Log
from wirewise_papers.swift.job import SwiftJob

if TYPE_CHECKING:
    from wirewise_papers.swift.records import RecoveryRun

__all__ = ["swift"]


class Swift(Experiment[SwiftJob, "RecoveryRun"]):
    """Run the built-in trainings under kills."""

    name = "swift"
    options = SwiftJob

    def run(self, job: SwiftJob, folder: Path, log: Log) -> RecoveryRun:
        """Kill ranks of a protected training and of baselines."""
        from wirewise_papers.swift import experiment

        return experiment.run(job, folder, log)

    def comparison(self, result: RecoveryRun) -> Comparison:
        """Recovery time, lost steps and goodput of each method."""
        from wirewise_papers.swift.page import recovery_comparison

        return recovery_comparison(result)

    def page(self, job: SwiftJob, result: RecoveryRun) -> str:
        """Render the page of the run."""
        from wirewise_papers.swift.page import recovery_html

        return recovery_html(result)


@with_options
def swift(
    cli_options: GivenOptions[SwiftJob],
    limits: GivenOptions[AgentLimits],
    changes: GivenOptions[ResumeOptions],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: torchrun ... train.py, a script of your own with the three lines."),
    ] = None,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Kill ranks of a training that recovers, compared with checkpoints and restarts under the same kills (SWIFT).

    Processes, kills, links and steps are real. With a command: its script is trained on this machine, protected.
    """
    if command:
        _survive(command, cli_options, limits.record(), changes.record(), out, json)
        return
    if changes.named:
        raise InputError(
            "--accept-changes is of a script of your own; expected it with -- torchrun ... train.py"
        )
    if limits.named:
        option = next(one.option for one in fields_of(AgentLimits) if one.name in limits.named)
        raise InputError(f"{option} is of a script of your own; expected it with -- torchrun ... train.py")
    Swift().execute(on_hosts(cli_options).record(), out, json)


def _survive(
    command: list[str],
    cli_options: GivenOptions[SwiftJob],
    limits: AgentLimits,
    changes: ResumeOptions,
    out: Path | None,
    json: str | None,
) -> None:
    """Train a user's script under an agent, and tell of its recoveries."""
    from wirewise.report import shell
    from wirewise.trials.start import expect_one_host
    from wirewise_papers.swift import own_script as swift_command
    from wirewise_papers.swift.page import recovery_timeline

    if others := sorted(cli_options.named - {"spares", "kills", "seed"}):
        raise InputError(
            f"--{others[0].replace('_', '-')} is of the built-in training; with a command expected --spares, --kills, "
            "--seed: the script says the rest"
        )
    expect_one_host(
        "run swift",
        "start `wirewise recover -- SCRIPT` on each host by srun --ntasks-per-node=1",
    )
    asked = cli_options.record()
    kills = asked.kills if "kills" in cli_options.named else 0
    with run_folder(out, "swift") as folder:
        found, killed = swift_command.run(
            command,
            folder,
            lambda text: print_text(text, err=json == "-"),
            spares=asked.spares,
            kills=kills,
            seed=asked.seed,
            limits=limits,
            changes=changes,
        )
        page = folder / "report.html"
        parts = [shell.head("wirewise run swift", f"{len(found)} recoveries"), recovery_timeline(found)]
        shell.write_page(shell.page("Recoveries", parts), page)
    record = {"strategy": asked.strategy, "kills": killed, "recoveries": msgspec.to_builtins(found)}
    record |= {"overhead": None, "goodput": None, "baseline_goodput": None}
    rows = [
        [str(one.rank), one.strategy, *(f"{value:.3f}" for value in one.phases_s.values())] for one in found
    ]
    phases = list(found[0].phases_s) if found else []
    write_out(json, record, (["rank", "strategy", *phases], rows), f"Report: {page}")
