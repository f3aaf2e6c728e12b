"""`wirewise run adaqp`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wirewise.cli.options import GivenOptions, on_hosts, with_options
from wirewise.cli.output import (
    JsonOption,
    print_text,
    run_folder,
    write_json,
)
from wirewise.errors import InputError, PeerError
from wirewise_papers.adaqp.job import FullGraphJob

if TYPE_CHECKING:
    from wirewise_papers.adaqp.progress import TrainingProgress
    from wirewise_papers.adaqp.records import RunResult

__all__ = ["adaqp"]


@with_options
def adaqp(
    cli_options: GivenOptions[FullGraphJob],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of parts, logs, result and report.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Folder of a stopped run: go on from its checkpoints, with its settings."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Full-graph GNN training with adaptively quantized messages (AdaQP), compared with full precision."""
    from wirewise.report.shell import write_page
    from wirewise_papers.adaqp import experiment
    from wirewise_papers.adaqp.page import page_html, print_result
    from wirewise_papers.adaqp.progress import TrainingProgress
    from wirewise_papers.adaqp.summary import to_json_object

    job = on_hosts(cli_options).record() if resume is None else _stopped_job(cli_options, out, resume)
    quiet = json == "-"
    with run_folder(resume or out, "adaqp") as folder:
        result = _run(job, folder, TrainingProgress(to_stderr=quiet), resume=resume is not None)
        page = folder / "report.html"
        write_page(page_html(result, experiment.saved_plan(folder, job)), page)
    if not quiet:
        print_result(result)
        print_text(f"Report: {page}")
    write_json(json, to_json_object(result))


def _stopped_job(cli_options: GivenOptions[FullGraphJob], out: Path | None, folder: Path) -> FullGraphJob:
    """The job of a stopped run, checked against the options that were given beside its folder."""
    from wirewise_papers.adaqp import resuming

    if out is not None and out.resolve() != folder.resolve():
        raise InputError(
            f"--out is {out} and --resume is {folder}; a run goes on in its own folder, leave --out away"
        )
    return resuming.read_job(
        folder, {name: cli_options.values[name] for name in cli_options.values if name in cli_options.named}
    )


def _run(job: FullGraphJob, folder: Path, progress: TrainingProgress, *, resume: bool) -> RunResult:
    """Run the recipe; where that is stopped and checkpoints lie there, say how to go on."""
    from wirewise_papers.adaqp import experiment

    try:
        return experiment.run(job, folder, progress, resume=resume)
    except PeerError as error:
        raise PeerError(f"{error}{_way_on(folder)}") from error
    except KeyboardInterrupt:
        print_text(f"wirewise: stopped{_way_on(folder)}", err=True)
        raise


def _way_on(folder: Path) -> str:
    if not (folder / "checkpoints").is_dir():
        return ""
    # Needs torch, which takes seconds to import.
    from wirewise_papers.adaqp import resuming

    if not resuming.can_continue(folder):
        return ""
    return f". Go on from the last checkpoint: wirewise run adaqp --resume {shlex.quote(str(folder))}"
