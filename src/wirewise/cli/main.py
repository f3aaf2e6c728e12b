"""The command `wirewise`: its groups, mounted by name and imported when they are called.

Help and planning commands start fast because nothing here imports torch; groups that need it import it inside
their commands.
"""

from __future__ import annotations

import importlib
import os
import signal
import tomllib
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import wirewise
from wirewise import jit, log
from wirewise.cli.options import Given, refuse, with_options
from wirewise.cli.output import FolderOption, JsonOption, note, print_text, write_out
from wirewise.cli.recover import HostOptions
from wirewise.cli.requests import Check, Conditions, Export, Request
from wirewise.errors import InputError, WirewiseError
from wirewise.recipes.scripts import AdviceOptions
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions

__all__ = ["GROUPS", "app", "load_systems", "main"]

GROUPS = {
    "run": "Run a published system end to end and report what it gained.",
    "bench": "Measure collectives of many programs and sizes on running ranks.",
    "data": "Graphs: list, show, build, check, generate, partition.",
    "lab": "A cluster on one machine: run commands on shaped hosts, try Slurm, check, clean up.",
    "plan": "Plans: buckets of gradients of a recorded run, programs of collectives on a topology.",
    "profile": "Record a training job, or measure where its time stalls.",
    "slurm": "Slurm: a file for sbatch, the place of a rank.",
    "topo": "Topologies: hosts, devices and links, from presets, files and measurements.",
    "trace": "Traces of all ranks: put together, aligned, explained and exported.",
}
"""Groups of commands; the module of each is `wirewise.cli.NAME` and holds the Typer application `app`."""


class _Group(TyperGroup):
    """A group that is imported when one of its commands is called, not when help lists it."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        module = importlib.import_module(f"wirewise.cli.{self.name}")
        command = typer.main.get_command(module.app)
        command.name = self.name
        return command.make_context(info_name, args, *rest, **extra)


class _Root(TyperGroup):
    """The top: knows the groups by name, and turns errors of wirewise into one message."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*GROUPS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in GROUPS:
            return _Group(name=cmd_name, help=GROUPS[cmd_name])
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WirewiseError as error:
            if ctx.params.get("debug"):
                raise
            print_text(f"wirewise: {error}", err=True)
            raise typer.Exit(2) from error
        except BrokenPipeError:
            raise  # Typer ends quietly when the reader of a pipe has gone.
        except OSError as error:
            if ctx.params.get("debug"):
                raise
            print_text(
                f"wirewise: {error}; free space, or choose a place that can be read and written (--debug shows where)",
                err=True,
            )
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure, predict, plan and run the communication of distributed PyTorch training.",
)
_list = typer.Typer(no_args_is_help=True, help="List what wirewise knows by name.")
app.add_typer(_list, name="list")


def main() -> None:
    """Run the command line; exit code 130 after Ctrl-C, 128 + n after SIGTERM or SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # One that is ignored, as nohup has it, stays so.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _leave)
    app(prog_name="wirewise")


def _leave(number: int, frame: FrameType | None) -> None:
    """Unwind, so that whatever was started or put aside is ended and removed; a second signal ends at once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(wirewise.__version__)
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Traceback of an error.")] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            help="Log changes of state on stderr, also of ranks; twice: phases, too.",
        ),
    ] = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version of wirewise.")
    ] = False,
) -> None:
    """Options that hold for every command; `debug` is read where errors are caught."""
    jit.announce(note)
    if verbose:
        # Ranks that a command starts inherit it.
        os.environ[log.LEVEL] = "info" if verbose == 1 else "debug"
    log.configure()


@app.command()
def doctor(
    warm: Annotated[bool, typer.Option("--warm", help="Kernels compiled now, not at first use.")] = False,
    json: JsonOption = None,
) -> None:
    """Check what this machine offers, and say what to do about what it lacks.

    Exit code 1 when something necessary is broken.
    """
    from wirewise.cli.doctor import report

    if not report(warm=warm, json=json):
        raise typer.Exit(1)


@app.command()
@with_options
def show(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A plan or program file, a recorded run, or COLLECTIVE[:ALGORITHM[:RANKS]] (broadcast:binomial:8).",
        ),
    ],
    given: Given[Request],
    json: JsonOption = None,
) -> None:
    """Show a plan as a table, or programs of collectives and recorded runs as a page that plays them."""
    from wirewise.cli.show import show as shown

    shown(given.record(sources=sources, json=json))


@app.command()
@with_options
def check(
    program: Annotated[
        str,
        typer.Argument(help="A program file, a plan of any family, broadcast:binomial:8, or an MSCCL file."),
    ],
    given: Given[Check],
    json: JsonOption = None,
) -> None:
    """Prove that a program does what its collective asks for, or that a plan fits; exit code 1 and a fault if not.

    Of an MSCCL file whose call has no known result (custom), form, waiting and races are proved, and the verdict is
    "not checked".
    """
    from wirewise.cli import check_plan, programs, sources

    asked = given.record(source=program, json=json)
    if (
        asked.on is not None
        or asked.job is not None
        or sources.family_of(program) not in (None, "collective")
    ):
        right = check_plan.check(program, asked.on, asked.job, json)
    else:
        right = programs.check(asked)
    if not right:
        raise typer.Exit(1)


@app.command()
@with_options
def export(
    program: Annotated[
        str, typer.Argument(help="A program file, a plan of a collective, or broadcast:binomial:8.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File; for chakra its start, RANK.et is added.")],
    given: Given[Export],
    json: JsonOption = None,
) -> None:
    """Write a program in the format of another runtime or simulator."""
    from wirewise.cli import programs

    programs.export(given.record(source=program, out=out, json=json))


@app.command()
@with_options
def sim(
    asked: Conditions,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="JOB",
            help="A run folder, or files of torch.profiler; with --plan also a file of gradients, operators or tasks.",
        ),
    ] = None,
    what_if: Annotated[
        str, typer.Option("--what-if", help="Changes, such as bandwidth=*:x2,bucket_mb=5.")
    ] = "",
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Plan of any family, under which the job is predicted.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Replay a trace and predict the step with changes; or predict how long a job takes under a plan."""
    from wirewise.cli import sim as command

    if plan is not None:
        return command.predict_plan(plan, sources or [], what_if, asked, json)
    refuse(asked, asked.__struct_fields__, "belongs to --plan FILE, and none is given")
    command.simulate(sources, what_if, json)


@app.command(context_settings={"allow_interspersed_args": False})
@with_options
def recover(
    command: Annotated[
        list[str], typer.Argument(help="After --: a script that calls `protect`, and its arguments.")
    ],
    given: Given[HostOptions],
    limits: AgentLimits,
    changes: ResumeOptions,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Train a script on one or several hosts, protected from failures; start it once on each host.

    Inside of an allocation of Slurm: srun --ntasks-per-node=1 wirewise recover -- train.py
    """
    from wirewise.cli import recover as module

    module.recover(command, given, limits, changes, out, json)


@app.command(context_settings={"allow_interspersed_args": False})
@with_options
def advise(
    command: Annotated[list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified.")],
    asked: AdviceOptions,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Say whether compressing a job's gradients pays, with the best plan; runs it as it is, then under plans.

    Exit code 1 where nothing can be advised: no plan was tried, and the predicted step is more than 15 % off.
    """
    from wirewise.cli.advise import advise as advised

    advised(command, out, asked, json)


def load_systems() -> list[dict[str, Any]]:
    """Published systems as `systems.toml` has them: next to the package in a wheel, in docs in a checkout.

    Raises:
        InputError: Neither the wheel's place nor the checkout's holds it.
    """
    package = Path(wirewise.__file__).parent
    places = [package / "systems.toml", package.parents[1] / "docs" / "systems.toml"]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        raise InputError(
            f"the table of systems is not at {' or '.join(map(str, places))}; install wirewise again, "
            "or restore docs/systems.toml in the checkout"
        )
    return list(tomllib.loads(place.read_text(encoding="utf-8"))["system"])


@_list.command()
def systems(json: JsonOption = None) -> None:
    """List the published systems: what each is for, where it lives, how far it is."""
    found = load_systems()
    rows = []
    for system in found:
        # What is planned cannot be called or opened yet; --json says where it will be.
        places = ["-", "-"] if system["status"] == "planned" else [system["command"], system["front_door"]]
        rows.append([system["title"], system["question"], system["status"], *places])
    titles = ["system", "question", "status", "command", "front door"]
    write_out(json, {"systems": found}, (titles, rows))


@_list.command()
def planners(json: JsonOption = None) -> None:
    """List all planners by the family of plans that they make."""
    from wirewise.planners import PLANNERS

    found = {family: list(names) for family, names in PLANNERS.items()}
    rows = [[family, ", ".join(names)] for family, names in found.items()]
    write_out(json, {"planners": found}, (["family", "planners"], rows))
