"""`wirewise bench collective`: every program compared with torch's own, on ranks of this machine."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from wirewise.cli.bench import bus_factor
from wirewise.cli.main import app
from wirewise.collective import build, save
from wirewise.lab import Loopback


def bench(*words, ranks=2):
    with Loopback() as here:
        command = ["-m", "wirewise", "bench", "collective", *words, "--repeats", "1", "--json", "-"]
        done = here.run(command, processes_per_host=ranks, launcher="direct", timeout_s=90)
    return done, "".join(line for line in done.tails[0] if line.startswith("{"))


@pytest.mark.slow
@pytest.mark.dist
def test_sizes_and_programs_have_a_row_each(tmp_path):
    save(build("all_reduce", "ring", 2), tmp_path / "own.json")
    words = ("--sizes", "8,4KB", "--programs", f"recursive_doubling,{tmp_path / 'own.json'}")
    done, text = bench(*words)
    assert done.ok, done.tails
    record = json.loads(text)
    assert [(row["size_bytes"], row["algorithm"]) for row in record["rows"]] == [
        (8, "recursive_doubling"),
        (8, "ring"),
        (4000, "recursive_doubling"),
        (4000, "ring"),
    ]
    assert all(row["measured_s"] > 0 and row["builtin_s"] > 0 for row in record["rows"])


@pytest.mark.slow
@pytest.mark.dist
def test_a_program_for_others_is_refused():
    done, _ = bench("--programs", "all_reduce:ring:3")
    assert not done.ok
    assert "expected all_reduce of 2" in "\n".join(done.tails[0])


def test_it_says_how_to_start_ranks(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    done = CliRunner().invoke(app, ["bench", "collective"])
    assert done.exit_code != 0 and "wirewise lab run" in done.output


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert [bus_factor(kind, 4) for kind in ("all_reduce", "all_gather", "broadcast")] == [1.5, 0.75, 1.0]
