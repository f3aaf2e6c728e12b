"""Records of wirewise tell where they come from, and nothing is printed unless somebody asks."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wirewise import log
from wirewise.errors import InputError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    root = logging.getLogger("wirewise")
    handlers, level, spread, position = list(root.handlers), root.level, root.propagate, dict(log._position)
    yield
    root.handlers[:], root.propagate = handlers, spread
    root.setLevel(level)
    logging.getLogger("wirewise.recovery").setLevel(logging.NOTSET)
    log._position.update(position)


def test_records_tell_rank_step_and_generation(caplog, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "3")
    log.set_position(step=12)
    log.set_position(generation=2)
    with caplog.at_level("INFO", "wirewise.graph"):
        log.logger("graph").info("a plan of %d buckets", 4)
        log.logger("graph").debug("a phase")
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("wirewise.graph", "a plan of 4 buckets")
    assert (record.rank, record.step, record.generation) == (3, 12, 2)


def test_levels_of_rooms_are_told_apart(capsys, monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    log.set_position(step=7, generation=1)
    log.configure("info,recovery=debug")
    log.logger("graph").debug("hidden")
    log.logger("graph").info("shown")
    log.logger("recovery").debug("a phase")
    logging.getLogger("wirewise.lab").warning("of a plain logger")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[-1] for line in lines] == ["shown", "a phase", "of a plain logger"]
    assert "INFO  wirewise.graph [rank None, step 7, generation 1]" in lines[0]


@pytest.mark.parametrize("levels", ["loud", "info,recovery", "recovery=", "=info", "recovery=loud"])
def test_what_is_no_level_is_refused(levels: str) -> None:
    with pytest.raises(
        InputError, match=r"WIREWISE_LOG is .*expected a level of debug, info, warning, error"
    ):
        log.configure(levels)


def test_the_variable_is_read_at_the_start_and_nothing_is_printed_without_it() -> None:
    code = "from wirewise.log import logger; logger('graph').info('here')"
    for levels, printed in (("", False), ("graph=info", True), ("loud", False)):
        done = subprocess.run(
            [sys.executable, "-c", code], env={"WIREWISE_LOG": levels, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ("here" in done.stderr) == printed
        assert ("expected a level" in done.stderr) == (levels == "loud")


def test_the_page_names_all_variables() -> None:
    page = (ROOT / "docs" / "logging.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert (
        sorted(set(re.findall(r"WIREWISE_[A-Z_]+", source)) - set(re.findall(r"WIREWISE_[A-Z_]+", page)))
        == []
    )


def test_the_page_names_all_rooms() -> None:
    page = (ROOT / "docs" / "logging.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    rooms = set(re.findall(r'_log = logger\("(\w+)"\)', source))
    assert rooms and {room for room in rooms if f"| `{room}` |" not in page} == set()
