"""Jobs of every grain, told by what their files hold."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.trace.synthetic import make
from wirewise.errors import InputError, TraceError
from wirewise.trace import FusionGraph, GradientTrace, TaskSet, Trace, read_job, write_trace

GRADIENTS = {"tensors": [{"name": "t", "elements": 4, "gap_us": 1.0}]}
TASKS = {"iterations": 1, "tasks": [{"name": "w", "kind": "worker"}], "flows": []}


def written(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("value", "kind"), [(GRADIENTS, GradientTrace), (TASKS, TaskSet)], ids=["gradients", "tasks"]
)
def test_a_key_tells_the_grain(value, kind, tmp_path):
    assert isinstance(read_job([written(tmp_path / "any.name", value)]), kind)


def test_operators_are_told(tmp_path):
    from benchmarks.random_steps import random_step

    random_step(1, 2).save(tmp_path / "graph.json")
    assert isinstance(read_job([tmp_path / "graph.json"]), FusionGraph)


def test_a_folder_and_its_files_are_a_trace(tmp_path):
    write_trace(make(ranks=2, steps=3).seen, tmp_path)
    folder, files = read_job([tmp_path]), read_job(sorted(tmp_path.glob("rank-*.jsonl")))
    assert isinstance(folder, Trace) and isinstance(files, Trace)
    assert len(folder.ranks) == len(files.ranks) == 2


def test_what_profilers_write_goes_to_their_readers(tmp_path):
    for text in ('{"traceEvents": []}', '{"schemaVersion": 1, "traceEvents": [', "[]"):
        with pytest.raises(TraceError):
            read_job([written(tmp_path / "profile.json", text)])
    (tmp_path / "profile.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    with pytest.raises(TraceError):
        read_job([tmp_path / "profile.json.gz"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"family": "fusion", "world_size": 2}, 'JSON with "family", "world_size", which describes no job'),
        ({}, "JSON with no keys"),
        (GRADIENTS | TASKS, 'JSON with "tensors", "iterations", "tasks", "flows", which'),
        ("rank 0", "cannot read a job from"),
        ("[" * 100_000, "cannot read a job from"),
        ("3", "cannot read a job from"),
        ({"tensors": []}, "there are no tensors"),
    ],
)
def test_files_without_a_job_are_named(value, said, tmp_path):
    with pytest.raises(InputError, match=r"job\.json") as caught:
        read_job([written(tmp_path / "job.json", value)])
    assert said in str(caught.value)


def test_a_grain_of_one_file_stands_alone(tmp_path):
    files = [written(tmp_path / f"{i}.json", GRADIENTS) for i in range(2)]
    with pytest.raises(InputError, match='JSON with "tensors" and one of 2 files'):
        read_job(files)
