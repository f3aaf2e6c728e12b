"""What commands of `wirewise run` make of their options."""

import importlib
import json

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from wirewise.cli import run_options, task_options
from wirewise.cli.run import app
from wirewise.runtime.incremental import Settings


class Found(msgspec.Struct):
    """A result."""

    a: int


class Begun(Exception):
    """A recipe was given its job."""


GIVEN = {
    "adaqp": (
        "adaqp",
        "--workers 6 --hosts 3 --links 2=5mbit --modes fp32,bf16 --no-norm --checkpoint-every 4 --timeout 77",
        {
            "workers": 6,
            "hosts": 3,
            "links": {2: "5mbit"},
            "modes": ("fp32", "bf16"),
            "norm": False,
            "checkpoint_every": 4,
            "timeout_s": 77.0,
        },
    ),
    "salientpp": (
        "salientpp",
        "--workers 3 --fanouts 3,2 --modes base,cache --policy degree,vip --train-share 0.5 --timeout 33",
        {
            "workers": 3,
            "fanouts": (3, 2),
            "modes": ("base", "cache"),
            "policy": "degree",
            "others": ("vip",),
            "train_share": 0.5,
            "timeout_s": 33.0,
        },
    ),
    "sea-er": (
        "sea_er",
        "--methods bare,ewc --smallest-class 9 --tasks 2 --workers 2 --growth separate --timeout 12",
        {
            "methods": ("bare", "ewc"),
            "fewest": 9,
            "most_tasks": 2,
            "workers": 2,
            "growth": "separate",
            "timeout_s": 12.0,
        },
    ),
}


def begun(monkeypatch, tmp_path, command, recipe, options=()):
    """The job that a command begins."""
    jobs = []

    def run(job, *_, **__):
        jobs.append(job)
        raise Begun

    monkeypatch.setattr(importlib.import_module(f"wirewise.recipes.{recipe}"), "run", run)
    done = CliRunner().invoke(app, [command, *options, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, Begun), done.output
    return jobs[0]


@pytest.mark.parametrize("command", GIVEN)
def test_options_reach_the_job(monkeypatch, tmp_path, command):
    recipe, options, fields = GIVEN[command]
    job = begun(monkeypatch, tmp_path, command, recipe, options.split())
    assert {name: getattr(job, name) for name in fields} == fields
    plain = begun(monkeypatch, tmp_path, command, recipe)
    rest = set(job.__struct_fields__) - set(fields)
    assert all(getattr(job, name) == getattr(plain, name) for name in rest)


def test_options_reach_the_settings_of_a_job(monkeypatch, tmp_path):
    options = ["--most-weight", "2", "--seed", "5", "--decay", "l2"]
    settings = begun(monkeypatch, tmp_path, "sea-er", "sea_er", options).settings
    assert (settings.most, settings.seed, settings.decay, settings.budget) == (2.0, 5, "l2", 5)


def test_a_result_and_its_page_are_written(tmp_path):
    page = run_options.save_result(tmp_path, Found(a=3), "<p>\N{DEGREE SIGN}</p>")
    assert page == tmp_path / "report.html" and page.read_text(encoding="utf-8") == "<p>\N{DEGREE SIGN}</p>"
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": 3}


def test_words_by_comma():
    assert run_options.words(" a, b ,,c") == ("a", "b", "c")
    assert run_options.words("") == ()


ELSEWHERE = {"out", "json", "timeout"}
"""Options that every command reads by itself, or as another field."""
READ = {
    "adaqp": ("job", "Job", {"resume"}),
    "salientpp": ("salientpp", "Job", set()),
    "cupcake": ("cupcake_job", "Job", {"split", "trace"}),
    "sea-er": ("sea_er", "Job", {"most_weight", "smallest_class", "tasks", *Settings.__struct_fields__}),
    "gnn-tasks": ("gnn_tasks", "Wish", {"job", "dataset", *task_options._EXPECTED}),
}
"""By command: the record that takes options of its fields' names, and options that are read otherwise."""


@pytest.mark.parametrize("command", READ)
def test_no_option_is_without_use(command):
    module, record, others = READ[command]
    fields = getattr(importlib.import_module(f"wirewise.recipes.{module}"), record).__struct_fields__
    options = {option.name for option in typer.main.get_command(app).commands[command].params}
    assert options <= {*fields, *ELSEWHERE, *others}
