"""`wirewise run`: experiments of installed packages, one command each, found by entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from wirewise.cli import collectives
from wirewise.errors import InputError

__all__ = ["GROUP", "app"]

GROUP = "wirewise.experiments"
"""Entry points of experiments: the name of the command, and a class with a method `command` or a function for typer."""


def _offered() -> dict[str, list[EntryPoint]]:
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        points.setdefault(point.name, []).append(point)
    return points


def _function(name: str, points: list[EntryPoint]) -> Callable[..., None]:
    """The function of a command.

    Raises:
        InputError: Several packages offer the name, or what one offers cannot be imported or is no experiment.
    """
    if len(points) > 1:
        raise InputError(
            f"the experiment {name!r} is offered by {' and by '.join(point.value for point in points)}; expected one "
            "package, remove the others"
        )
    (point,) = points
    try:
        loaded: Any = point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"the experiment {name!r} ({point.value}) cannot be imported: {error}; reinstall or remove its package"
        ) from error
    if isinstance(loaded, type) and hasattr(loaded, "command"):
        loaded = loaded().command()
    if isinstance(loaded, type) or not callable(loaded):
        raise InputError(
            f"the experiment {name!r} ({point.value}) is {loaded!r}; expected a class with a method `command`, or a "
            "function for typer"
        )
    function: Callable[..., None] = loaded
    return function


class _Experiments(TyperGroup):
    """Commands by entry points; one is imported when it is called or listed with its help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(_offered())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        if (points := _offered().get(cmd_name)) is None:
            return None
        try:
            function = _function(cmd_name, points)
        except InputError as error:
            # One package that is broken leaves the list of the others readable.
            function = _refusing(error)
        # Options behind a user's own command are the command's.
        settings = {"allow_interspersed_args": "command" not in function.__annotations__}
        single = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        single.command(cmd_name, context_settings=settings)(function)
        return typer.main.get_command(single)


def _refusing(error: InputError) -> Callable[..., None]:
    def refuse() -> None:
        raise error

    refuse.__doc__ = f"Not usable: {error}."
    return refuse


app = typer.Typer(
    cls=_Experiments, no_args_is_help=True, help="Run an experiment end to end and report its gain."
)


@app.callback()
def _group() -> None:
    """Keep `run` a group of commands where no experiment is installed."""


app.command()(collectives.collective)
