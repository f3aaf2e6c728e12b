"""Examples of helps: they are shown, stand in the documentation, and take options that their commands have."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from wirewise.cli.examples import EXAMPLES
from wirewise.cli.main import GROUPS, app

ROOT = Path(__file__).parents[2]
PAGES = "".join(
    page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
)


def command(words):
    group = importlib.import_module(f"wirewise.cli.{words[0]}").app if words[0] in GROUPS else app
    found = typer.main.get_command(group)
    return found.commands[words[-1]] if hasattr(found, "commands") else found


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_documented_and_its_command_takes_it(name):
    example = EXAMPLES[name]
    assert example.startswith(f"wirewise {name} ") and example in PAGES
    own = [word for word in example.partition(" -- ")[0].split() if word.startswith("-")]
    options = {text for one in command(name.split()).params for text in one.opts}
    assert set(own) <= options


@pytest.mark.parametrize("name", ["sim", "data check"])
def test_a_help_ends_with_its_example(name):
    text = CliRunner().invoke(app, [*name.split(), "-h"], env={"COLUMNS": "300"}).output
    assert f"Example: {EXAMPLES[name]}" in text
