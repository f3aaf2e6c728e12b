"""Options that are made from records: each field has one, wrong values are named, help says ranges and defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from wirewise import options as opt
from wirewise.cli import options as options_of_commands
from wirewise.cli.options import GivenOptions, on_hosts, with_options
from wirewise.errors import InputError
from wirewise.hosts import slurm
from wirewise.hosts.allocation import Allocation
from wirewise_papers.adaqp.job import FullGraphJob


class Inner(opt.Options, frozen=True, kw_only=True):
    depth: Annotated[opt.Count, opt.about("Depth of a tree.")] = 2
    hidden_from_users: int = 4


class Record(opt.Options, frozen=True, kw_only=True):
    needed: Annotated[str, opt.about("A word that has to be given.")]
    count: Annotated[opt.Count, opt.about("Number of things.", option="--number")] = 3
    ratio: Annotated[opt.Share, opt.about("Part of a whole.")] = 0.5
    kind: Annotated[Literal["slow", "fast"], opt.about("slow: with care; fast: without.")] = "slow"
    method: Annotated[str, opt.about("Way to do it.", words=("up", "down"))] = "up"
    names: Annotated[opt.Distinct, opt.about("Names of things.")] = ("a", "b")
    sizes: Annotated[tuple[int, ...], opt.about("Sizes of things.")] = (15, 10)
    repeated: Annotated[list[Annotated[float, opt.about(ge=0)]], opt.about("A number.")] = msgspec.field(
        default_factory=list
    )
    perhaps: Annotated[tuple[int, ...] | None, opt.about("Numbers; by default none.")] = None
    links: opt.Links = msgspec.field(default_factory=dict)
    most: Annotated[opt.Count | None, opt.about("Largest number; by default any.")] = None
    file: Annotated[Path | None, opt.about("File to read.")] = None
    norm: Annotated[bool, opt.about("Normalisation.")] = True
    drop: Annotated[bool, opt.about("Dropping of things.")] = False
    both: Annotated[bool, opt.about("Switch with two names.", option="--both/--no-both")] = False
    timeout_s: opt.Timeout = 120.0
    inner: Inner = Inner()
    not_an_option: int = 7


FOUND: list[object] = []
app = typer.Typer()


@app.command()
@with_options
def take(record: Record, extra: Annotated[str, typer.Option(help="An option of its own.")] = "x") -> None:
    """Take a record."""
    FOUND[:] = [record, extra]


@app.command()
@with_options
def ask(given: GivenOptions[Record]) -> None:
    """Take what is said of a record."""
    FOUND[:] = [given]


COMMANDS = typer.main.get_command(app).commands


def call(*words: str) -> Record:
    done = CliRunner().invoke(app, ["take", "--needed", "n", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return FOUND[0]


def test_defaults_are_those_of_the_record():
    assert call() == Record(needed="n")
    assert FOUND[1] == "x"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--needed m", "needed", "m"),
        ("--number 5", "count", 5),
        ("--ratio 1", "ratio", 1.0),
        ("--kind fast", "kind", "fast"),
        ("--method down", "method", "down"),
        ("--names c,,d", "names", ("c", "d")),
        ("--sizes 3,-1", "sizes", (3, -1)),
        ("--repeated 0.5 --repeated 2", "repeated", [0.5, 2.0]),
        ("--perhaps 3,4", "perhaps", (3, 4)),
        ("--links 2=5mbit,3=1gbit", "links", {2: "5mbit", 3: "1gbit"}),
        ("--most 4", "most", 4),
        ("--file a/b", "file", Path("a/b")),
        ("--no-norm", "norm", False),
        ("--drop", "drop", True),
        ("--both", "both", True),
        ("--timeout 3", "timeout_s", 3.0),
        ("--depth 9", "inner", Inner(depth=9)),
    ],
)
def test_every_kind_of_field_is_read(line, name, value):
    assert getattr(call(*line.split()), name) == value


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--number 0", "--number is 0; expected at least 1"),
        ("--ratio 2", "--ratio is 2.0; expected a number from 0 to 1"),
        ("--ratio nan", "--ratio is nan; expected a number from 0 to 1"),
        ("--kind medium", "--kind is 'medium'; expected one of: slow, fast"),
        ("--method left", "--method is 'left'; expected one of: up, down"),
        ("--names ,", "--names is ','; expected at least one, each once"),
        ("--names a,a", "--names is 'a,a'; expected at least one, each once"),
        ("--sizes a,b", "--sizes is 'a,b'; expected whole numbers by comma"),
        ("--names a --names b,c", "--names was given 2 times, as a and b,c; expected once, with all of it"),
        ("--links 2=5mbit --links 3=1gbit", "--links was given 2 times, as 2=5mbit and 3=1gbit"),
        ("--links x", "link 'x' is not understood"),
        ("--repeated 1 --repeated -1", "--repeated is [1.0, -1.0]; expected at least 0"),
        ("--most 0", "--most is 0; expected at least 1"),
        ("--timeout 0", "--timeout is 0.0; expected a finite number above 0"),
        ("--depth 0", "--depth is 0; expected at least 1"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(command, line, told):
    with pytest.raises(InputError, match=f"^{re.escape(told)}"):
        CliRunner().invoke(app, [command, "--needed", "n", *line.split()], catch_exceptions=False)


def test_unknown_options_and_missing_ones_are_refused():
    for words, told in (
        (["--needed", "n", "--not-an-option", "3"], "No such option"),
        ([], "Missing option"),
    ):
        done = CliRunner().invoke(app, ["take", *words])
        assert done.exit_code == 2 and told in done.output


def test_what_the_user_wrote_is_known():
    line = ["ask", "--needed", "n", "--number", "3", "--depth", "2"]
    assert CliRunner().invoke(app, line, catch_exceptions=False).exit_code == 0
    (given,) = FOUND
    assert given.named == {"needed", "count", "depth"}
    assert given.values["count"] == 3 and given.values["inner"] == Inner()
    assert given.record(not_an_option=1) == Record(needed="n", not_an_option=1)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_described_field_has_one_option_and_no_option_is_without_a_field(command):
    options = {option.name for option in COMMANDS[command].params} - {"extra"}
    described = {
        field.name for record in (Record, Inner) for field in opt.fields_of(record) if field.description
    }
    assert options == described
    assert not {"not_an_option", "hidden_from_users", "inner"} & options


def test_help_says_ranges_and_defaults():
    text = " ".join(CliRunner().invoke(app, ["take", "--help"], env={"COLUMNS": "300"}).output.split())
    for said in (
        "Number of things; at least 1. [default: 3]",
        "Part of a whole; from 0 to 1. [default: 0.5]",
        "slow: with care; fast: without. [default: slow]",
        "Way to do it; one of: up, down. [default: up]",
        "Names of things; at least one, each once. [default: a,b]",
        "Depth of a tree; at least 1. [default: 2]",
        "Take a record.",
    ):
        assert said in text, text
    assert "--norm --no-norm" in text and "--no-drop" not in text and "--no-both" in text


@pytest.mark.parametrize(
    ("said", "hosts", "workers"),
    [
        ({}, 3, 6),
        ({"workers": 3}, 3, 3),
        ({"workers": 2}, 2, 2),
        ({"hosts": 2}, 2, 4),
        ({"hosts": 2, "workers": 8}, 2, 8),
        ({"hosts": 0}, 3, 6),
        ({"network": "lab"}, 0, 4),
    ],
)
def test_inside_an_allocation_hosts_and_ranks_are_those_of_slurm(monkeypatch, said, hosts, workers):
    found = Allocation("7", ("h0", "h1", "h2"), 6)
    monkeypatch.setattr(options_of_commands, "current_allocation", lambda: found)
    monkeypatch.setattr(slurm, "current_allocation", lambda: found)
    values = {"hosts": 0, "workers": 4, "network": "auto", "link": "100mbit", **said}
    settled = on_hosts(GivenOptions(FullGraphJob, values, frozenset(said)))
    assert (settled.values["hosts"], settled.values["workers"]) == (hosts, workers)
    assert settled.values["network"] == said.get("network", "slurm")
    if "network" not in said:
        with pytest.raises(InputError, match=r"--link shapes the hosts of a lab.*say --network lab"):
            on_hosts(GivenOptions(FullGraphJob, values, frozenset({"link"})))
