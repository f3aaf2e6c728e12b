"""Options of long helps stand in panels."""

from __future__ import annotations

import importlib

import pytest
import typer
from typer.testing import CliRunner

from wirewise.cli.main import GROUPS, app
from wirewise.cli.panels import PANELS, group_options


def commands():
    """Every command."""
    yield from typer.main.get_command(app).commands.values()
    for name in GROUPS:
        group = typer.main.get_command(importlib.import_module(f"wirewise.cli.{name}").app)
        context = typer.Context(group, info_name=name)
        yield from (group.get_command(context, one) for one in group.list_commands(context))


@pytest.mark.slow  # it imports every experiment
def test_panels_name_options_that_there_are_and_no_option_is_of_the_shell():
    there = {text for command in commands() for one in command.params for text in one.opts}
    assert {option for options in PANELS.values() for option in options.split()} <= there
    assert "--install-completion" not in there


@pytest.mark.parametrize(("name", "shown"), [("sim", True), ("check", False)])
def test_many_options_are_grouped_and_few_are_not(name, shown):
    text = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "100"}).output
    assert ("Hosts and network" in text) == shown == ("╭─ Output" in text)
    assert "--json" in text


def test_a_panel_of_the_commands_own_stays():
    single = typer.Typer(add_completion=False)

    @single.command()
    def many(
        out: str = typer.Option("", rich_help_panel="Own"),
        a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0, g: int = 0, h: int = 0, seed: int = 0,
        hosts: int = 0,
    ) -> None: ...  # fmt: skip

    parameters = typer.main.get_command(single).params
    group_options(parameters)
    panels = {one.opts[0]: one.rich_help_panel for one in parameters}
    assert (panels["--out"], panels["--hosts"], panels["--a"]) == ("Own", "Hosts and network", None)
