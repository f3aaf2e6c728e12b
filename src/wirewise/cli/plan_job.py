"""`wirewise plan FAMILY JOB`: what all commands that plan share, and the command of a family without one of its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from wirewise.cli.output import JsonOption, Said, write_out
from wirewise.cli.topo import open_topology
from wirewise.cost.links import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners import PLANNERS, planner
from wirewise.planners.faces import problems_of
from wirewise.plans import PLANS, Plan, save
from wirewise.trace import read_job

__all__ = ["OutOption", "family_command", "make_plan", "planned_with", "tell"]

OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="File that takes the plan.")]

Kind = TypeVar("Kind", bound=Plan)


def make_plan(kind: type[Kind], name: str, job: Any, links: Any = None, **given: Any) -> Kind:
    """The plan of a planner of the family; what is None is left to the planner.

    Raises:
        InputError: The planner is for jobs of another kind, or has no use for something that is given.
        PlanError: No planner of the family has the name, or as that planner.
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


def planned_with(family: str) -> Any:
    """The option `--with` of a family's command; the family's first planner is its default."""
    names = list(PLANNERS[family])
    return typer.Option(names[0], "--with", help=f"One of {', '.join(names)}.")


def family_command(family: str) -> Any:
    """The command of a family that has a record, planners, and a job that `read_job` reads."""
    app = typer.Typer()

    @app.command(family, help=f"Choose a {family} plan for a job.")
    def plan(
        job: Annotated[
            list[Path], typer.Argument(metavar="JOB", help="File that describes it, or a run folder.")
        ],
        on: Annotated[
            str | None, typer.Option("--on", help="Topology of its ranks, a preset or a file.")
        ] = None,
        name: str = planned_with(family),
        seed: Annotated[int | None, typer.Option(help="Seed of random choices.")] = None,
        time_budget: Annotated[float | None, typer.Option(help="Seconds for the search.")] = None,
        out: OutOption = None,
        json: JsonOption = None,
    ) -> None:
        links = None if on is None else Links.of(open_topology(on))
        found = make_plan(PLANS[family], name, read_job(job), links, seed=seed, time_budget_s=time_budget)
        tell(found, out, json)

    return typer.main.get_command(app)


def tell(
    found: Plan, out: Path | None, json: str | None, *said: Said, record: Mapping[str, Any] | None = None
) -> None:
    """Write a plan of any family and its record, and print what is said of it.

    Args:
        found: Plan of a planner.
        out: File that takes the plan.
        json: Target of `JsonOption`.
        said: Lines and tables; none: the plan's own headline and table.
        record: Figures for the JSON; none: the plan.
    """
    if out is not None:
        save(found, out)
    write_out(
        json,
        {"plan": msgspec.to_builtins(found)} if record is None else record,
        *(said or (f"{found.headline}.", found.table())),
    )
