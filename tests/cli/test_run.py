"""What commands of `wirewise run` make of their options."""

import importlib
import json

import msgspec
import pytest
from typer.testing import CliRunner

from wirewise.cli.output import save_result
from wirewise.cli.run import app


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
            "policies": ("degree", "vip"),
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

    monkeypatch.setattr(importlib.import_module(f"wirewise_papers.{recipe}.experiment"), "run", run)
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
    page = save_result(tmp_path, Found(a=3), "<p>\N{DEGREE SIGN}</p>")
    assert page == tmp_path / "report.html" and page.read_text(encoding="utf-8") == "<p>\N{DEGREE SIGN}</p>"
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": 3}
