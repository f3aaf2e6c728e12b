"""`wirewise plan FAMILY JOB`: code shared by planning commands, and the command of a family without its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from wirewise.cli.output import JsonOption, Said, writable_file, write_out
from wirewise.cli.topo import open_topology
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS, planner
from wirewise.planners.faces import problems_of
from wirewise.plans import PLANS, Plan, save
from wirewise.trace import read_job

__all__ = ["OutOption", "family_command", "make_plan", "planner_option", "print_plan"]

OutOption = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="File that takes the plan.", callback=writable_file),
]

Kind = TypeVar("Kind", bound=Plan)


def make_plan(kind: type[Kind], name: str, job: Any, links: Any = None, **given: Any) -> Kind:
    """Run a planner of the family; arguments that are None are left to the planner's defaults.

    Raises:
        InputError: The planner is for another kind of job, or does not take a given argument.
        PlanError: No planner of the family has the name, or raised by the planner.
    """
    make, knobs = planner(kind.family, name), {knob: v for knob, v in given.items() if v is not None}
    own = problems_of(make)
    if own is not None and not own.takes(job):
        all_of = {other: problems_of(one) for other, one in PLANNERS[kind.family].items()}
        others = {other: one.about for other, one in all_of.items() if one is not None and one.takes(job)}
        got = next(iter(others.values()), type(job).__name__)
        raise InputError(
            f"planner {name!r} is for {own.about}; got {got}; expected one of: {', '.join(others)}"
        )
    known = inspect.signature(make).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()) and (
        unknown := set(knobs) - set(known)
    ):
        raise InputError(
            f"planner {name!r} has no use for {', '.join(sorted(unknown))}; it takes: {', '.join(list(known)[2:])}"
        )
    found = make(job, links, **knobs)
    if not isinstance(found, kind):
        raise PlanError(f"planner {name!r} made a {type(found).__name__}; expected a {kind.__name__}")
    return found


def planner_option(family: str) -> Any:
    """Option `--with` of a family's command; defaults to the family's first planner."""
    names = list(PLANNERS[family])
    return typer.Option(names[0], "--with", help=f"One of {', '.join(names)}.")


def family_command(family: str) -> Any:
    """Build the command of a family that has a record, planners, and a job type known to `read_job`."""
    app = typer.Typer(add_completion=False)

    @app.command(family, help=f"Choose a {family} plan for a job.")
    def plan(
        job: Annotated[
            list[Path], typer.Argument(metavar="JOB", help="File that describes it, or a run folder.")
        ],
        on: Annotated[
            str | None, typer.Option("--topology", help="Topology of its ranks, a preset or a file.")
        ] = None,
        name: str = planner_option(family),
        seed: Annotated[int | None, typer.Option(help="Seed of random choices.")] = None,
        time_budget: Annotated[float | None, typer.Option(help="Search budget, in seconds.")] = None,
        out: OutOption = None,
        json: JsonOption = None,
    ) -> None:
        links = None if on is None else Links.of(open_topology(on))
        found = make_plan(PLANS[family], name, read_job(job), links, seed=seed, time_budget_s=time_budget)
        print_plan(found, out, json)

    return typer.main.get_command(app)


def print_plan(
    plan: Plan, out: Path | None, json: str | None, *said: Said, record: Mapping[str, Any] | None = None
) -> None:
    """Write a plan of any family and its record, and print its lines and tables.

    Args:
        plan: Plan of a planner.
        out: File for the plan.
        json: Target of `JsonOption`.
        said: Lines and tables to print. Defaults to the plan's own headline and table.
        record: Record for the JSON. Defaults to the plan.
    """
    if out is not None:
        save(plan, out)
    write_out(
        json,
        {"plan": msgspec.to_builtins(plan)} if record is None else record,
        *(said or (f"{plan.headline}.", plan.table())),
    )
