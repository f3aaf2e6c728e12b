"""The table of published systems says what is true."""

import importlib
from pathlib import Path

import pytest

from wirewise.cli.main import load_systems

ROOT = Path(__file__).parents[1]
QUESTIONS = {
    "Why is my step slow?",
    "Send fewer bytes",
    "Send them better",
    "Train on a big graph",
    "Split a big model",
    "Survive failures",
    "Share a cluster",
    "See it",
    "A whole application",
}
TEXTS = ("name", "title", "question", "status", "front_door", "command", "reproduced", "missing")
SYSTEMS = load_systems()


def test_nineteen_systems_with_names_of_their_own():
    assert len(SYSTEMS) == 19
    assert len({system["name"] for system in SYSTEMS}) == 19


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system["name"])
class TestSystem:
    def test_is_complete(self, system):
        assert all(isinstance(system[field], str) and system[field] for field in TEXTS)
        assert all(isinstance(system[field], list) for field in ("parts", "tests", "benchmarks"))
        assert system["question"] in QUESTIONS
        assert system["status"] in {"done", "partial", "planned"}
        paper = system["paper"]
        assert paper["title"] and paper["authors"] and paper["venue"]
        assert 2015 < paper["year"] < 2030

    def test_what_it_names_exists(self, system):
        if system["status"] == "planned":
            # A planned system must not claim anything.
            assert system["reproduced"] == "Nothing yet."
            assert system["tests"] == system["benchmarks"] == []
            return
        for place in [system["front_door"], *system["parts"]]:
            if place.startswith("wirewise"):
                importlib.import_module(place)
            else:
                assert (ROOT / place).exists()
        assert system["tests"]
        for place in [*system["tests"], *system["benchmarks"]]:
            assert (ROOT / place).exists()

    def test_a_planned_system_is_not_there_unnoticed(self, system):
        door = ROOT / "src" / system["front_door"].replace(".", "/")
        if system["status"] == "planned" and system["front_door"].startswith("wirewise"):
            assert not (door.with_suffix(".py").exists() or door.is_dir()), "written: change its status"


def test_headings_are_those_of_the_landing_page():
    assert {system["question"] for system in SYSTEMS} == QUESTIONS
