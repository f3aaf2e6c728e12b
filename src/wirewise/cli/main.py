"""The command `wirewise`: its groups, mounted by name and imported when called.

Help and planning commands start fast because nothing here imports torch; groups that need it import it inside
their commands.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import wirewise
from wirewise import jit, log
from wirewise.advice.options import AdviceOptions, TraceSource
from wirewise.cli.examples import add_example
from wirewise.cli.options import GivenOptions, refuse, with_options
from wirewise.cli.output import FolderOption, JsonOption, note, print_text, write_out
from wirewise.cli.panels import group_options
from wirewise.cli.recover import HostOptions
from wirewise.cli.requests import Check, Conditions, Export, Request
from wirewise.errors import InputError, WirewiseError
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions

__all__ = ["GROUPS", "app", "load_systems", "main"]

GROUPS = {
    "run": "Run a published system end to end and report what it gained.",
    "bench": "Measure collectives of many programs and sizes on running ranks.",
    "data": "Graphs: list, show, build, check, generate, partition.",
    "lab": "A cluster on one machine: run commands on shaped hosts, try Slurm, check, clean up.",
    "plan": "Plans: fusion of gradients, cache, collective, jobs, parallel, pipeline, placement, recovery, reshard.",
    "profile": "Record a training job, or measure where its time stalls.",
    "slurm": "Slurm: a file for sbatch, the place of a rank.",
    "topo": "Topologies: hosts, devices and links, from presets, files and measurements.",
    "trace": "Traces of all ranks: put together, aligned, explained and exported.",
    "watch": "Jobs that wirewise.watch watches: steps, exchange, memory, drifts.",
}
"""Groups of commands; the module of each is `wirewise.cli.NAME` and holds the Typer application `app`."""
_TOPOLOGY = {"--on": "--topology"}
_FORMER = {
    "check": _TOPOLOGY,
    "data": {"--output": "--out"},
    "plan": {"--memory-budget": "--memory", **_TOPOLOGY},
    "show": _TOPOLOGY,
    "sim": _TOPOLOGY,
}
"""Former names of options by group or command, which scripts may still use and no help shows."""
_HELP = ("-h", "--help")
_COMPLETION = ("install_completion", "show_completion")


class _Group(TyperGroup):
    """A group that is imported when one of its commands is called, not when help lists it."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        module = importlib.import_module(f"wirewise.cli.{self.name}")
        command = typer.main.get_command(module.app)
        command.name = self.name
        # Typer adds them to each application; a shell completes `wirewise` alone.
        command.params = [one for one in command.params if one.name not in _COMPLETION]
        add_example(command, str(self.name))
        return command.make_context(info_name, args, *rest, **extra)


def _renamed(args: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Arguments with former names of options replaced, up to a user's own command after --."""
    end = list(args).index("--") if "--" in args else len(args)
    split = [(*arg.partition("="),) for arg in args[:end]]
    return ["".join((names.get(name, name), *rest)) for name, *rest in split] + list(args[end:])


class _Root(TyperGroup):
    """The top: knows the groups by name, and turns errors of wirewise into one message."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*GROUPS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in GROUPS:
            return _Group(name=cmd_name, help=GROUPS[cmd_name])
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            add_example(command, cmd_name)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, _renamed(rest, _FORMER.get(name or "", {}))

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
    context_settings={"help_option_names": list(_HELP)},
    help="Measure, predict, plan and run the communication of distributed PyTorch training.",
)
_list = typer.Typer(no_args_is_help=True, help="List what wirewise knows by name.")
app.add_typer(_list, name="list")


def _type_of_values(self: Any, ctx: Any, shown: Callable[[Any, Any], str | None]) -> str | None:
    """Type of an option's value in a help; None for a switch, which takes no value."""
    return None if self.is_flag and self.metavar is None else shown(self, ctx)


def _grouped_help(self: Any, ctx: Any, formatter: Any, shown: Callable[[Any, Any, Any], None]) -> None:
    """Help of a command, whose options stand in panels if they are many."""
    group_options(self.params)
    shown(self, ctx, formatter)


TyperCommand.format_help = partialmethod(  # type: ignore[method-assign,assignment]
    _grouped_help, shown=TyperCommand.format_help
)
# Typer writes <bool> behind every switch, also behind --help, and has no setting for it.
TyperOption.display_type_rich = partialmethod(  # type: ignore[method-assign,assignment]
    _type_of_values, shown=TyperOption.display_type_rich
)


def main() -> None:
    """Run the command line; exit code 130 after Ctrl-C, 128 + signal after SIGTERM or SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # One that is ignored, as nohup has it, stays so.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _leave)
    for stream in (sys.stdout, sys.stderr):
        # Where the locale or PYTHONIOENCODING has no minus sign, its code is written, and no traceback.
        # A stream that its launcher has begun to write may refuse.
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
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
            help="Log state changes on stderr, also of ranks; twice: phases too.",
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
    warm: Annotated[bool, typer.Option("--warm", help="Compile kernels now, not at first use.")] = False,
    json: JsonOption = None,
) -> None:
    """Check what this machine supports, and say how to fix what is missing.

    Exit code 1 if something required is broken.
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
    cli_options: GivenOptions[Request],
    json: JsonOption = None,
) -> None:
    """Show a plan as a table, or collective programs and recorded runs as an interactive page."""
    from wirewise.cli.show import show as shown

    shown(cli_options.record(sources=sources, json=json))


@app.command()
@with_options
def check(
    program: Annotated[
        str,
        typer.Argument(help="A program file, a plan of any family, broadcast:binomial:8, or an MSCCL file."),
    ],
    cli_options: GivenOptions[Check],
    json: JsonOption = None,
) -> None:
    """Prove that a program implements its collective, or that a plan fits; exit code 1 and the first fault if not.

    For an MSCCL file of a custom collective, whose result is unknown, only syntax, deadlocks and races are checked,
    and the verdict is "not checked".
    """
    from wirewise.cli import check_plan, programs, sources

    asked = cli_options.record(source=program, json=json)
    if (
        asked.topology is not None
        or asked.job is not None
        or sources.family_of(program) not in (None, "collective")
    ):
        right = check_plan.check(program, asked.topology, asked.job, json)
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
    cli_options: GivenOptions[Export],
    json: JsonOption = None,
) -> None:
    """Write a program in the format of another runtime or simulator."""
    from wirewise.cli import programs

    programs.export(cli_options.record(source=program, out=out, json=json))


@app.command()
@with_options
def sim(
    options: Conditions,
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
    """Replay a trace and predict the step under changes, or predict the time of a job under a plan."""
    from wirewise.cli import sim as command

    if plan is not None:
        return command.predict_plan(plan, sources or [], what_if, options, json)
    refuse(options, options.__struct_fields__, "belongs to --plan FILE, and none is given")
    command.simulate(sources, what_if, json)


@app.command(context_settings={"allow_interspersed_args": False})
@with_options
def recover(
    command: Annotated[
        list[str], typer.Argument(help="After --: a script that calls `protect`, and its arguments.")
    ],
    cli_options: GivenOptions[HostOptions],
    limits: AgentLimits,
    changes: ResumeOptions,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Train a script with failure recovery, on one or several hosts; start the command once on each host.

    In a Slurm allocation: srun --ntasks-per-node=1 wirewise recover -- train.py
    """
    from wirewise.cli import recover as module

    module.recover(command, cli_options, limits, changes, out, json)


@app.command(context_settings={"allow_interspersed_args": False})
@with_options
def advise(
    options: AdviceOptions,
    cli_options: GivenOptions[TraceSource],
    command: Annotated[
        list[str] | None, typer.Argument(help="After --: torchrun ... train.py, unmodified.")
    ] = None,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Find the bottleneck of a job and what to change, by trials inside its script or from a trace."""
    from wirewise.cli import advise as module

    if cli_options.record().trace:
        return module.advise_trace(cli_options.record(), command or [], out, json)
    module.advise(command or [], out, options, json)


@app.command()
def compare(
    run_a: Annotated[
        Path, typer.Argument(help="Recorded run that is the baseline: a folder or a trace file.")
    ],
    run_b: Annotated[Path, typer.Argument(help="Recorded run that is compared with it.")],
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over", metavar="SHARE", help="Exit code 1 if a step is longer by more, such as 5%."
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Compare two recorded runs of a job: what got slower, where, and whether noise explains it."""
    from wirewise.cli.compare import compare as compared

    compared(run_a, run_b, fail_over, json)


@app.command()
def mcp(
    folder: Annotated[
        Path, typer.Argument(help="Folder that tools read and write; nothing outside of it.")
    ] = Path(),
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Longest time of a call.")] = 300.0,
    memory: Annotated[str, typer.Option("--memory", help="Memory of a call.")] = "8GiB",
) -> None:
    """Serve traces, predictions, plans, checks and advice as tools to a coding agent, over stdin and stdout.

    Tools run no user code: models are read from files written by `wirewise profile`.
    """
    from wirewise.cli import mcp as module

    module.serve(folder, seconds, memory)


def load_systems() -> list[dict[str, Any]]:
    """Read the published systems from `systems.toml`, next to the package in a wheel and in docs in a checkout.

    Raises:
        InputError: Neither place has the file.
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
    """List the published systems with purpose, module and status."""
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
    """List all planners by family of plans."""
    from wirewise.planners import PLANNERS

    found = {family: list(names) for family, names in PLANNERS.items()}
    rows = [[family, ", ".join(names)] for family, names in found.items()]
    write_out(json, {"planners": found}, (["family", "planners"], rows))
